// What a step of train_gpt's model calls on a GPU, in each mode, as a table: counted on fake GPUs
// by two ranks in this process, without MPI. LibTorch's own kernels are not counted.
#include <cstdio>
#include <string>
#include <vector>

#include <ATen/ops/randint.h>
#include <torch/optim/adamw.h>

#include "gpt/model.hpp"
#include "kolo/torch/distributed_optimizer.hpp"
#include "train/cuda/fake_cuda_fixture.hpp"

namespace kolo::test {
namespace {

struct Row {
  const char* name;
  Shard shard;
  Compression compression = Compression::none();
};

constexpr int kRanks = 2;
constexpr int kWarm = 3;
constexpr int kSteps = 10;

void train(CudaRank& rank, const Row& row) {
  gpt::Gpt model(gpt::ModelOptions{.layers = 3, .width = 384});
  model->to(rank.device());
  torch::optim::AdamW adam(model->parameters(), torch::optim::AdamWOptions(1e-3));
  DistributedOptimizer::Options options;
  options.shard = row.shard;
  options.compression = row.compression;
  options.process_set = &rank.world();
  DistributedOptimizer optimizer(adam, *model, options);
  FakeGpuHub::Calls before;
  int syncs = 0;
  for (int step = 0; step < kWarm + kSteps; ++step) {
    if (step == kWarm) {
      before = rank.calls();
      syncs = rank.host_syncs();
    }
    optimizer.zero_grad();
    const at::Tensor windows = at::randint(256, {2, 33}, rank.options(at::kLong));
    gpt::next_byte_loss(model, windows).backward();
    optimizer.step();
  }
  if (rank.rank() > 0) return;
  const FakeGpuHub::Calls after = rank.calls();
  const auto per_step = [](int more) { return static_cast<double>(more) / kSteps; };
  std::printf("| %s | %.1f | %.1f | %.1f | %.1f | %.1f |\n", row.name,
              per_step(after.launches - before.launches), per_step(after.kernels - before.kernels),
              per_step(after.records - before.records), per_step(after.waits - before.waits),
              per_step(rank.host_syncs() - syncs));
  std::fflush(stdout);
}

}  // namespace
}  // namespace kolo::test

int main() {
  using namespace kolo::test;
  const std::vector<Row> rows{
      {"`none`", kolo::Shard::None},
      {"`none`, fp16", kolo::Shard::None, kolo::Compression::fp16()},
      {"`optimizer`", kolo::Shard::Optimizer},
      {"`gradients`", kolo::Shard::Gradients},
      {"`full`", kolo::Shard::Full},
  };
  std::printf(
      "| mode | collectives | kernels | events recorded | waits for events | host waits |\n"
      "|---|---|---|---|---|---|\n");
  for (const Row& row : rows) run_cuda_ranks(kRanks, [&](CudaRank& rank) { train(rank, row); });
}

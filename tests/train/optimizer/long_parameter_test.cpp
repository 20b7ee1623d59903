// Parameters so long that a rank's shard of one consists of several leaves.
#include <filesystem>
#include <string>
#include <unistd.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "checkpoint/safetensors.hpp"
#include "kolo/objects.hpp"
#include "support/mpi/variants.hpp"
#include "train/sharding.hpp"

namespace kolo::test::long_parameter_test {

const AlsoIn also_in({"uneven", "messages"});

namespace fs = std::filesystem;

// 4.4 MB: two or more leaves on each of 4 ranks, and two chunks of a full state.
constexpr std::int64_t kElements = 1'100'003;

/// One parameter; the gradient pulls each element towards the mean of the ranks' targets.
struct Pull {
  Pull(ProcessSet& of, Shard shard)
      : set(of),
        parameter(torch::linspace(0.5, 1.5, kElements).requires_grad_()),
        adamw({parameter}, torch::optim::AdamWOptions(1e-2)),
        optimizer(adamw, DistributedOptimizer::NamedParameters{{"long", parameter}},
                  {.process_set = &of, .shard = shard}) {}
  void run(int steps) {
    const at::Tensor wanted = torch::linspace(-1.0, 1.0, kElements) * set.rank();
    for (int step = 0; step < steps; ++step) {
      optimizer.zero_grad();
      (parameter - wanted).pow(2).sum().mul(0.5).backward();
      optimizer.step();
    }
  }
  at::Tensor values() const { return parameter.detach(); }

  ProcessSet& set;
  at::Tensor parameter;
  torch::optim::AdamW adamw;
  DistributedOptimizer optimizer;
};

TEST_F(ShardedOptimizerTest, LongParameters_AreUpdatedLikeWholeOnes) {
  Pull whole(runtime_.world(), Shard::None);
  whole.run(4);
  at::Tensor alone = torch::linspace(0.5, 1.5, kElements);
  torch::optim::AdamW adamw({alone}, torch::optim::AdamWOptions(1e-2));
  for (int step = 0; step < 4; ++step) {
    alone.mutable_grad() =
        alone - torch::linspace(-1.0, 1.0, kElements) * ((runtime_.size() - 1) / 2.0);
    adamw.step();
  }
  EXPECT_LT(largest_difference(whole.values(), alone), 1e-5);
  for (const Shard mode : sharded_modes()) {
    Pull sharded(runtime_.world(), mode);
    sharded.run(4);
    expect_alike(sharded.values(), whole.values());
    EXPECT_GE(sharded.adamw.state().size(), 2U) << "the shard is in one piece";
    sharded.optimizer.reset_parameter_state(sharded.parameter);
    EXPECT_TRUE(sharded.optimizer.parameter_state(sharded.parameter).empty());
  }
}

TEST_F(ShardedOptimizerTest, StateOfLongParameters_IsSavedAndLoaded) {
  const fs::path folder = broadcast_object(
      (fs::temp_directory_path() / ("kolo-long-" + std::to_string(getpid()))).string(), 0);
  ProcessSet& first = runtime_.add_process_set({0});
  Pull before(runtime_.world(), Shard::Gradients);
  before.run(2);
  before.optimizer.save(folder);
  const at::Tensor saved = before.values().clone();
  before.run(2);
  for (const Shard mode : sharded_modes()) {
    Pull after(runtime_.world(), mode);
    after.optimizer.load(folder);
    after.run(2);
    expect_alike(after.values(), before.values());
  }
  if (runtime_.rank() == 0) {  // at another world size, with its own gradients from here on
    Pull alone(first, Shard::Gradients);
    alone.optimizer.load(folder);
    EXPECT_TRUE(torch::equal(alone.values(), saved));
    Pull plain(first, Shard::None);
    plain.optimizer.load(folder);
    alone.run(2);
    plain.run(2);
    EXPECT_TRUE(torch::equal(alone.values(), plain.values()));
    fs::remove_all(folder);
  }
  barrier();
}

TEST_F(ShardedOptimizerTest, FullStateOfLongParameters_HasEveryElement) {
  const fs::path file = broadcast_object(
      (fs::temp_directory_path() / ("kolo-long-" + std::to_string(getpid()))).string(), 0);
  for (const Shard mode : sharded_modes()) {
    Pull pull(runtime_.world(), mode);
    pull.run(1);
    pull.optimizer.save_full_state(file);
    at::Tensor moments = torch::empty({kElements});
    checkpoints::SafetensorsReader(file).read(
        "optimizer.exp_avg.long", DType::Float32, 0,
        {static_cast<std::byte*>(moments.data_ptr()), moments.nbytes()});
    const at::Tensor gradient =
        torch::linspace(0.5, 1.5, kElements) -
        torch::linspace(-1.0, 1.0, kElements) * ((runtime_.size() - 1) / 2.0);
    EXPECT_LT(largest_difference(moments, 0.1 * gradient), 1e-6);
    barrier();
  }
  if (runtime_.rank() == 0) fs::remove(file);
}

}  // namespace kolo::test::long_parameter_test

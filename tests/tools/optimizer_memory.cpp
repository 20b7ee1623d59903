// Checks that DistributedOptimizers that have been destroyed leave nothing behind: memory,
// mappings, descriptors, threads.
//
//   mpirun -np 2 optimizer_memory none|optimizer|gradients|full [n]    by default 1,000
//
// Wraps an optimizer, takes a step and destroys both, n times with one model. Prints what each rank
// holds after every tenth. Exit code 1 where the second half added anything.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <torch/torch.h>

#include "kolo/kolo.hpp"
#include "tools/resources.hpp"

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  kolo::Shard shard = kolo::Shard::None;
  if (mode == "optimizer") {
    shard = kolo::Shard::Optimizer;
  } else if (mode == "gradients") {
    shard = kolo::Shard::Gradients;
  } else if (mode == "full") {
    shard = kolo::Shard::Full;
  } else if (mode != "none") {
    std::fprintf(stderr, "usage: optimizer_memory none|optimizer|gradients|full [n]\n");
    return 2;
  }
  const std::int64_t count = argc > 2 ? std::atoll(argv[2]) : 1'000;
  const kolo::Runtime runtime(kolo::test::with_small_table());
  torch::nn::Linear model(64, 64);
  const at::Tensor input = torch::ones({4, 64});
  const bool is_flat = kolo::test::is_flat("optimizers", count, runtime.rank(), [&] {
    torch::optim::AdamW adamw(model->parameters(), 1e-4);
    kolo::DistributedOptimizer optimizer(adamw, *model, {.shard = shard});
    optimizer.zero_grad();
    model->forward(input).pow(2).mean().backward();
    optimizer.step();
  });
  std::printf("%s: %s\n", mode.c_str(), is_flat ? "flat" : "growing");
  return is_flat ? 0 : 1;
}

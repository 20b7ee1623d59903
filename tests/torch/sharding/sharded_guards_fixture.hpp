#pragma once

#include <cstdint>

#include <torch/torch.h>

#include "torch/sharding.hpp"
#include "torch/torch_fixture.hpp"

namespace kolo::test {

/// Trains a small model with a DistributedOptimizer that the tests misuse.
class ShardedGuardsTest : public TorchTest {
 protected:
  static constexpr std::int64_t kWidth = 9;  // features of a sample

  void backward(torch::nn::Sequential& model, int step) {
    loss_of(model, batch_rows(step, 3 * rank(), 3, kWidth, torch::kFloat32)).backward();
  }
  void train(torch::nn::Sequential& model, DistributedOptimizer& optimizer, int steps) {
    for (int step = 0; step < steps; ++step) {
      optimizer.zero_grad();
      backward(model, step);
      optimizer.step();
    }
  }
};

}  // namespace kolo::test

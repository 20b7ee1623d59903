#pragma once

#include <cstdint>

#include <torch/torch.h>

#include "train/sharding.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test {

/// Trains a small model with a DistributedOptimizer that the tests misuse.
class ShardedGuardsTest : public TrainingTest {
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

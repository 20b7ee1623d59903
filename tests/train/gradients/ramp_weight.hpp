#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/runtime.hpp"
#include "kolo/torch/distributed_optimizer.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test {

class RampWeightTest : public TrainingTest {
 protected:
  double mean_rank() const { return (size() - 1) / 2.0; }
};

/// A weight that starts at zero, with learning rate 1.
struct RampWeight {
  explicit RampWeight(DistributedOptimizer::Options options = {})
      : optimizer(inner, {{"weight", weight}}, options) {}

  /// Adds factor * [0, 1, 2, 3] + offset to the gradient.
  void backward(double factor, double offset = 0) {
    (weight * (torch::arange(4) * factor + offset)).sum().backward();
  }

  at::Tensor weight = torch::zeros({4}, torch::dtype(torch::kFloat64).requires_grad(true));
  torch::optim::SGD inner{{weight}, 1.0};
  DistributedOptimizer optimizer;
};

inline at::Tensor ramp(double factor, double offset = 0) {
  return torch::arange(4, torch::kFloat64) * factor + offset;
}

}  // namespace kolo::test

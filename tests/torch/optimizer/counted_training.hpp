#pragma once

#include <cstdint>
#include <utility>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/torch/distributed_optimizer.hpp"
#include "torch/torch_fixture.hpp"

namespace kolo::test {

/// A weight of five elements that starts at zero, with learning rate 1.
struct OneWeight {
  explicit OneWeight(DistributedOptimizer::Options options = {},
                     torch::ScalarType type = torch::kFloat64)
      : weight(torch::zeros({5}, torch::dtype(type).requires_grad(true))),
        inner({weight}, 1.0),
        optimizer(inner, {{"weight", weight}}, std::move(options)) {}

  /// Every element has the gradient `gradient`.
  at::Tensor loss(double gradient) { return (weight.to(torch::kFloat64) * gradient).sum(); }
  double value() const { return weight[4].item<double>(); }

  at::Tensor weight;
  torch::optim::SGD inner;
  DistributedOptimizer optimizer;
};

/// Counts and gradients that differ between ranks.
class CountedTraining : public TorchTest {
 protected:
  // On this rank, and over all ranks.
  std::int64_t own_count() const { return 3 * rank() + 1; }
  double own_gradient() const { return 10.0 * rank() - 4.0; }
  double all_counts() const { return 1.5 * size() * (size() - 1) + size(); }
  double all_gradients() const { return 5.0 * size() * (size() - 1) - 4.0 * size(); }
  double expected() const { return all_gradients() / all_counts(); }

  /// Expects that a counted step works, for instance after an error.
  void expect_usable(OneWeight& model) {
    const double before = model.value();
    model.optimizer.zero_grad();
    model.optimizer.backward(model.loss(own_gradient()), own_count());
    model.optimizer.step();
    EXPECT_NEAR(before - model.value(), expected(), 1e-12);
  }
};

}  // namespace kolo::test

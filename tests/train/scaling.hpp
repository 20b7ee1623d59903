#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/torch/distributed_optimizer.hpp"
#include "kolo/torch/grad_scaler.hpp"
#include "train/sharding.hpp"
#include "train/training_fixture.hpp"

/// Shared code of the GradScaler tests.
namespace kolo::test {

inline constexpr std::int64_t kWidth = 9;
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// All shard modes, and one layout that is sharded only within nodes.
inline std::vector<DistributedOptimizer::Options> all_layouts() {
  std::vector<DistributedOptimizer::Options> layouts;
  for (const Shard shard : all_modes()) layouts.push_back(with(shard));
  layouts.push_back(with(Shard::Gradients));
  layouts.back().shard_scope = ShardScope::Node;
  return layouts;
}

class GradScalerTest : public TrainingTest {
 protected:
  /// The loss of this rank's rows; on `culprit`, one element of one gradient is infinite. All ranks
  /// use the parameter once more, as Shard::Full needs where it is gathered.
  at::Tensor loss(torch::nn::Sequential& model, int step, int culprit = -1, std::size_t where = 0) {
    at::Tensor loss = loss_of(model, batch_rows(step, 3 * rank(), 3, kWidth, torch::kFloat32));
    if (culprit < 0) return loss;
    const at::Tensor parameter = model->parameters()[where].flatten();
    return loss + parameter[parameter.numel() - 1] * (rank() == culprit ? kInfinity : 0.0);
  }
};

/// One parameter with one element, which only one rank can own.
struct Single {
  explicit Single(DistributedOptimizer::Options options = {})
      : inner({weight}, torch::optim::SGDOptions(0.25)),
        optimizer(inner, {{"weight", weight}}, std::move(options)) {}
  void backward(GradScaler& scaler, double gradient) {
    scaler.scale((weight * gradient).sum()).backward();
  }
  double value() const { return weight.item<double>(); }
  at::Tensor weight = torch::ones({1}).requires_grad_();
  torch::optim::SGD inner;
  DistributedOptimizer optimizer;
};

}  // namespace kolo::test

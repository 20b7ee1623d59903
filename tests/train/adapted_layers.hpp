#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "train/layer_units.hpp"
#include "train/sharding.hpp"
#include "train/training_fixture.hpp"

/// A model of frozen layers with low-rank adapters (LoRA).
namespace kolo::test::adapted_layers {

using layer_units::kLayers;
using layer_units::kWidth;
inline constexpr std::int64_t kRank = 2;
inline constexpr std::size_t kFrozenBytes = kWidth * (kWidth + 1) * sizeof(float);
inline constexpr std::size_t kAdapterBytes = 2 * kRank * kWidth * sizeof(float);

class AdaptedImpl : public torch::nn::Module {
 public:
  explicit AdaptedImpl(std::int64_t width = kWidth) {
    base = register_module("base", torch::nn::Linear(width, width));
    for (at::Tensor& parameter : base->parameters()) parameter.set_requires_grad(false);
    down = register_parameter("down", torch::randn({kRank, width}) / 5);
    up = register_parameter("up", torch::randn({width, kRank}) / 5);
  }
  at::Tensor forward(const at::Tensor& values) {
    return base(values) + values.matmul(down.t()).matmul(up.t());
  }
  torch::nn::Linear base{nullptr};
  at::Tensor down, up;
};
TORCH_MODULE(Adapted);

/// Adapted layers. The first is frozen entirely, with its adapter.
class AdaptedLayersImpl : public torch::nn::Module {
 public:
  explicit AdaptedLayersImpl(std::int64_t width = kWidth) {
    torch::manual_seed(19);
    for (std::size_t i = 0; i < kLayers; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), Adapted(width)));
    }
    for (at::Tensor& parameter : layers[0]->parameters()) parameter.set_requires_grad(false);
  }
  at::Tensor forward(at::Tensor values,
                     const std::vector<std::size_t>& order = layer_units::ascending()) {
    for (const std::size_t i : order) values = torch::tanh(layers[i](values));
    return values;
  }
  std::vector<Adapted> layers;
};
TORCH_MODULE(AdaptedLayers);

/// Each layer is a unit.
inline DistributedOptimizer::Options layer_by_layer(Shard shard) {
  DistributedOptimizer::Options options;
  options.shard = shard;
  options.bucket_bytes = kFrozenBytes + kAdapterBytes;
  return options;
}

/// All parameters, concatenated; uses only one unit at a time.
inline at::Tensor values_of(const torch::nn::Module& model) {
  std::vector<at::Tensor> values;
  for (const at::Tensor& parameter : model.parameters()) {
    values.push_back(parameter.detach().clone().flatten());
  }
  return torch::cat(values);
}

/// Trains models with adapted layers.
class AdaptedLayersTest : public TrainingTest {
 protected:
  using Options = DistributedOptimizer::Options;
  using Hook = std::function<void(AdaptedLayers&, DistributedOptimizer&, int step)>;

  void step(AdaptedLayers& model, DistributedOptimizer& optimizer, int number,
            const std::vector<std::size_t>& order = layer_units::ascending()) const {
    optimizer.zero_grad();
    model->forward(layer_units::input(rank(), number), order).square().sum().backward();
    optimizer.step();
  }
  /// All parameters after training.
  at::Tensor train(const Options& options, const Hook& before_step = nullptr) const {
    AdaptedLayers model;
    torch::optim::AdamW inner(model->parameters(), torch::optim::AdamWOptions(1e-2).eps(1e-4));
    DistributedOptimizer optimizer(inner, *model, options);
    for (int number = 0; number < 5; ++number) {
      if (before_step) before_step(model, optimizer, number);
      step(model, optimizer, number);
    }
    return values_of(*model);
  }
};

}  // namespace kolo::test::adapted_layers

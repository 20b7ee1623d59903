#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include <torch/torch.h>

#include "kolo/runtime.hpp"
#include "kolo/torch/distributed_optimizer.hpp"
#include "torch/models.hpp"
#include "torch/sharding.hpp"

namespace kolo::test::sharded_guards_test {

/// One of the two models of a GAN, trained with Kolo in `mode`, or without.
struct Player {
  Player(std::int64_t width, std::optional<Shard> mode)
      : model(make_mlp(torch::kFloat64, width, 2)),
        inner(make_optimizer(Algorithm::RmsProp, model->parameters())) {
    if (mode) optimizer = std::make_unique<DistributedOptimizer>(*inner, *model, with(*mode));
  }
  void zero_grad() { optimizer ? optimizer->zero_grad() : inner->zero_grad(); }
  void step() { optimizer ? optimizer->step() : inner->step(); }
  void clamp() {
    const auto change = [&] {
      const at::NoGradGuard no_grad;
      for (at::Tensor& weight : model->parameters()) weight.clamp_(-0.2, 0.2);
    };
    optimizer ? optimizer->full_parameters(change) : change();
  }

  torch::nn::Sequential model;
  std::unique_ptr<Optimizer> inner;
  std::unique_ptr<DistributedOptimizer> optimizer;
};

/// A Wasserstein GAN. Weights are clamped while the critic holds gradients from the generator's
/// pass.
inline at::Tensor train_wgan(Runtime& runtime, std::optional<Shard> mode) {
  Player generator(4, mode);
  Player critic(3, mode);
  const std::int64_t rows = mode ? 12 / runtime.size() : 12;
  const std::int64_t first = mode ? runtime.rank() * rows : 0;
  const auto batch = [&](int step, std::int64_t width) {
    return batch_rows(step, first, rows, width, torch::kFloat64);
  };
  for (int step = 0; step < 6; ++step) {
    for (int round = 0; round < 2; ++round) {
      critic.clamp();
      critic.zero_grad();
      const at::Tensor fake = generator.model->forward(batch(step + 50, 4)).detach();
      const at::Tensor real = batch(step + round, 3);
      (critic.model->forward(fake).mean() - critic.model->forward(real).mean()).backward();
      critic.step();
    }
    generator.zero_grad();
    (-critic.model->forward(generator.model->forward(batch(step + 100, 4))).mean()).backward();
    generator.step();
  }
  return torch::cat({flat(*generator.model), flat(*critic.model)});
}

}  // namespace kolo::test::sharded_guards_test

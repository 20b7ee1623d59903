#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include <torch/torch.h>

#include "kolo/runtime.hpp"
#include "kolo/torch/distributed_optimizer.hpp"
#include "torch/models.hpp"
#include "torch/sharding.hpp"

/// Training in bfloat16 with master copies, with and without Kolo.
namespace kolo::test::precision_test {

inline constexpr std::int64_t kWidth = 9;
inline constexpr std::int64_t kRows = 4;

inline MakeOptimizer adamw() {
  return maker<torch::optim::AdamW>(torch::optim::AdamWOptions(1e-3).eps(1e-4));
}

/// A weight of ones, whose gradient the test chooses.
struct Line {
  explicit Line(at::ScalarType type) : weight(torch::ones({300}, type).set_requires_grad(true)) {}
  void add_gradient(double slope) const { (weight * slope).sum().backward(); }
  at::Tensor weight;
};

/// A weight in bfloat16 with a master copy, trained by SGD.
struct MasterLine {
  explicit MasterLine(Shard mode) : line(torch::kBFloat16), inner({line.weight}, 1e-3) {
    DistributedOptimizer::Options options = with(mode);
    options.master_weights = true;
    optimizer = std::make_unique<DistributedOptimizer>(
        inner, DistributedOptimizer::NamedParameters{{"weight", line.weight}}, options);
  }
  void step(double slope) {
    optimizer->zero_grad();
    line.add_gradient(slope);
    optimizer->step();
  }
  float value(int i) const { return line.weight[i].item<float>(); }

  Line line;
  torch::optim::SGD inner;
  std::unique_ptr<DistributedOptimizer> optimizer;
};

/// A multi-layer perceptron in bfloat16 with master copies.
struct MasterTraining {
  explicit MasterTraining(DistributedOptimizer::Options options)
      : model(make_mlp(torch::kBFloat16)), inner(adamw()(model->parameters())) {
    options.master_weights = true;
    optimizer = std::make_unique<DistributedOptimizer>(*inner, *model, options);
  }
  void run(int begin, int end) {
    for (int step = begin; step < end; ++step) {
      optimizer->zero_grad();
      const std::int64_t row = kRows * Runtime::current().rank();
      loss_of(model, batch_rows(step, row, kRows, kWidth, torch::kBFloat16)).backward();
      optimizer->step();
    }
  }
  torch::nn::Sequential model;
  std::unique_ptr<Optimizer> inner;
  std::unique_ptr<DistributedOptimizer> optimizer;
};

/// The same without Kolo: every rank computes the gradients of all ranks.
inline void train_masters_alone(torch::nn::Sequential& model, int ranks, int steps,
                                const std::function<at::Tensor(const at::Tensor& rows)>& loss) {
  Parameters masters;
  for (const at::Tensor& parameter : model->parameters()) {
    masters.push_back(parameter.detach().clone().to(torch::kFloat).set_requires_grad(true));
    masters.back().mutable_grad() = torch::zeros_like(masters.back());
  }
  const auto optimizer = adamw()(masters);
  for (int step = 0; step < steps; ++step) {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& master : masters) master.grad().zero_();
    for (int rank = 0; rank < ranks; ++rank) {
      model->zero_grad();
      {
        const at::AutoGradMode grad(true);
        loss(batch_rows(step, kRows * rank, kRows, kWidth, torch::kBFloat16)).backward();
      }
      for (std::size_t i = 0; i < masters.size(); ++i) {
        masters[i].mutable_grad() += model->parameters()[i].grad().to(torch::kFloat) / ranks;
      }
    }
    optimizer->step();
    for (std::size_t i = 0; i < masters.size(); ++i) {
      model->parameters()[i].copy_(masters[i].detach());
    }
  }
}

}  // namespace kolo::test::precision_test

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "train/cuda/cuda_training.hpp"

namespace kolo::test::cuda_codec_test {

/// Parameters that start at zero, trained with learning rate 1. Losses are linear in them, so all
/// given gradients must arrive.
struct LinearTraining {
  LinearTraining(CudaRank& rank, DistributedOptimizer::Options options) : rank_(rank) {
    DistributedOptimizer::NamedParameters names;
    for (const std::vector<std::int64_t>& shape :
         std::vector<std::vector<std::int64_t>>{{700}, {37, 11}, {1}, {5}}) {
      parameters.push_back(torch::zeros(shape, rank.options()).requires_grad_());
      names.emplace_back("p" + std::to_string(names.size()), parameters.back());
      given.push_back(torch::zeros(shape, at::kDouble));
    }
    sgd = std::make_unique<torch::optim::SGD>(parameters, 1.0);
    options.op = ReduceOp::Sum;
    options.bucket_bytes = 2000;
    options.process_set = &rank.world();
    optimizer = std::make_unique<DistributedOptimizer>(*sgd, names, options);
  }

  static at::Tensor gradient(const at::Tensor& like, int rank, int step) {
    return (torch::arange(like.numel(), at::kDouble) * (0.37 * (rank + 2)) + step)
        .sin()
        .view(like.sizes());
  }
  /// This rank's gradients, on its device.
  std::vector<at::Tensor> gradients(int step) const {
    std::vector<at::Tensor> own;
    for (const at::Tensor& parameter : parameters) {
      own.push_back(gradient(parameter, rank_.rank(), step).to(at::kFloat).to(rank_.device()));
    }
    return own;
  }
  at::Tensor loss(const std::vector<at::Tensor>& own) const {
    at::Tensor loss = (parameters[0] * own[0]).sum();
    for (std::size_t i = 1; i < own.size(); ++i) loss = loss + (parameters[i] * own[i]).sum();
    return loss;
  }
  void step(const std::vector<at::Tensor>& own) const {
    optimizer->zero_grad();
    loss(own).backward();
    optimizer->step();
  }
  void count(int step) {
    for (at::Tensor& each : given) {
      for (int rank = 0; rank < rank_.size(); ++rank) each += gradient(each, rank, step);
    }
  }
  /// The largest difference between given and applied gradients.
  double missing() const {
    double most = 0;
    for (std::size_t i = 0; i < given.size(); ++i) {
      const at::Tensor applied = parameters[i].detach().cpu().to(at::kDouble);
      most = std::max(most, (applied + given[i]).abs().max().item<double>());
    }
    return most;
  }

  CudaRank& rank_;
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> given;
  std::unique_ptr<torch::optim::SGD> sgd;
  std::unique_ptr<DistributedOptimizer> optimizer;
};

}  // namespace kolo::test::cuda_codec_test

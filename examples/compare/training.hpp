#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/adamw.h>

#include "compare/options.hpp"
#include "kolo/torch/distributed_optimizer.hpp"

namespace compare {

/// A model, and its loss on the batch that it trains on.
struct Learner {
  std::shared_ptr<torch::nn::Module> model;
  std::function<at::Tensor()> loss;
};

/// One of the models of Options, the same on all ranks.
Learner make_learner(const std::string& model, const Size& size);

/// A model that AdamW trains in one mode. Collective.
class Training {
 public:
  Training(const std::string& model, const Size& size, kolo::Shard shard);

  void step();
  std::int64_t parameters() const;

 private:
  Learner learner_;
  torch::optim::AdamW adamw_;
  kolo::DistributedOptimizer optimizer_;
};

}  // namespace compare

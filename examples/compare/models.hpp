#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/adamw.h>

#include "kolo/torch/distributed_optimizer.hpp"

namespace compare {

/// The size of a model and of its batches.
struct Size {
  int blocks = 8;
  std::int64_t width = 256;
  int batch = 2;  ///< samples of each rank in a step
};

/// A model, and its loss on the batch that it trains on.
struct Learner {
  std::shared_ptr<torch::nn::Module> model;
  std::function<at::Tensor()> loss;
};

/// One of the models "transformer", "convnet" and "speech", the same on all ranks.
Learner make_learner(const std::string& model, const Size& size);

/// A model that AdamW trains in one mode. Collective.
class Training {
 public:
  Training(const std::string& model, const Size& size, kolo::Shard shard);

  void step();
  std::int64_t parameters() const;
  kolo::TrainingReport report() const { return optimizer_.report(); }

 private:
  Learner learner_;
  torch::optim::AdamW adamw_;
  kolo::DistributedOptimizer optimizer_;
};

}  // namespace compare

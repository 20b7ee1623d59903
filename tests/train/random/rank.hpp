#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "kolo/extras/accelerator.hpp"
#include "kolo/runtime.hpp"
#include "kolo/torch/distributed_optimizer.hpp"
#include "kolo/torch/grad_scaler.hpp"
#include "train/random/reference.hpp"

/// Random training programs: one rank of a part.
namespace kolo::random_training {

class Rank {
 public:
  /// Builds the model and wraps its optimizers. Collective.
  /// @param folder of the program's files
  Rank(const Plan& plan, const Setup& setup, const Structure& structure, Runtime& runtime,
       std::filesystem::path folder);
  ~Rank();
  Rank(const Rank&) = delete;  // optimizers refer to its model
  Rank& operator=(const Rank&) = delete;

  int number() const { return runtime_.rank(); }
  int size() const { return runtime_.size(); }
  const Setup& setup() const { return setup_; }
  const Plan& plan() const { return plan_; }
  int optimizers() const { return plan_.optimizers(); }
  Model& model() { return model_; }
  DistributedOptimizer& optimizer(int index) {
    return accelerator_ != nullptr ? accelerator_->optimizer() : *at(index).wrapper;
  }
  Accelerator& accelerator() { return *accelerator_; }
  torch::optim::Optimizer& wrapped(int index) { return *at(index).wrapped; }
  torch::optim::Optimizer& side(int index, Side side) {
    if (side == Side::Wrapped) return wrapped(index);
    return optimizer(index);
  }
  GradScaler& scaler() { return scaler_; }
  std::filesystem::path path(const std::string& name) const { return folder_ / name; }
  void wrap(int index);
  void accelerate();
  void unwrap(int index) { at(index).wrapper.reset(); }

  /// The loss of this rank's part of the batch, as backward() takes it.
  at::Tensor loss(const Pass& pass, int share_of) const;
  /// Runs the pass. `share_of`: the rank whose part of the batch it takes.
  void run(const Pass& pass, int share_of);

  /// Whether it has joined, so that it makes no calls until all have.
  bool is_away = false;

 private:
  struct Trained {
    std::unique_ptr<torch::optim::Optimizer> owned;  // unless the wrapper owns it
    torch::optim::Optimizer* wrapped = nullptr;
    std::unique_ptr<DistributedOptimizer> wrapper;
  };
  Trained& at(int index) { return trained_[static_cast<std::size_t>(index)]; }

  const Plan& plan_;
  const Setup& setup_;
  Runtime& runtime_;
  const std::filesystem::path folder_;
  Model model_;
  std::vector<Trained> trained_;
  std::unique_ptr<Accelerator> accelerator_;
  GradScaler scaler_;
};

/// Throws std::runtime_error if they differ.
void require_near(const std::string& what, const at::Tensor& got, const at::Tensor& expected);
void require_near(const std::string& what, double got, double expected);

}  // namespace kolo::random_training

#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "train/wrapped/wrapped_optimizer.hpp"

namespace kolo::train {

/// An optimizer class of LibTorch with its options and its state for a parameter.
template <class OptimizerType, class OptionsType, class StateType>
struct LibTorchClass {
  using Optimizer = OptimizerType;
  using Options = OptionsType;
  using State = StateType;
};

/// All LibTorch optimizers that keep their state per parameter. LBFGS does not.
using LibTorchClasses = std::tuple<
    LibTorchClass<torch::optim::SGD, torch::optim::SGDOptions, torch::optim::SGDParamState>,
    LibTorchClass<torch::optim::Adam, torch::optim::AdamOptions, torch::optim::AdamParamState>,
    LibTorchClass<torch::optim::AdamW, torch::optim::AdamWOptions, torch::optim::AdamWParamState>,
    LibTorchClass<torch::optim::RMSprop, torch::optim::RMSpropOptions,
                  torch::optim::RMSpropParamState>,
    LibTorchClass<torch::optim::Adagrad, torch::optim::AdagradOptions,
                  torch::optim::AdagradParamState>>;

/// Calls `visit` with each LibTorchClass until it returns true; returns whether it did.
template <class Visit>
bool visit_libtorch_classes(Visit visit) {
  return std::apply([&](auto... known) { return (visit(known) || ...); }, LibTorchClasses{});
}

/// While it lives, the groups of an optimizer hold other parameters: group i those of
/// `parameters[i]`, or none.
class SwappedParameters {
 public:
  SwappedParameters(torch::optim::Optimizer& optimizer,
                    std::vector<std::vector<at::Tensor>> parameters)
      : optimizer_(optimizer) {
    parameters.resize(optimizer_.param_groups().size());
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      own_.push_back(
          std::exchange(optimizer_.param_groups()[i].params(), std::move(parameters[i])));
    }
  }
  ~SwappedParameters() {
    for (std::size_t i = 0; i < own_.size(); ++i) {
      optimizer_.param_groups()[i].params() = std::move(own_[i]);
    }
  }
  SwappedParameters(const SwappedParameters&) = delete;  // it swaps back once
  SwappedParameters& operator=(const SwappedParameters&) = delete;

 private:
  torch::optim::Optimizer& optimizer_;
  std::vector<std::vector<at::Tensor>> own_;
};

/// While it lives, torch::save of an optimizer throws InvalidArgument, naming what to call instead,
/// rather than silently writing this rank's shards of the state.
///
/// It adds an entry to the optimizer's state, of the same class as the others and with empty
/// tensors, so that programs can still iterate over all entries. Optimizers of classes not from
/// LibTorch are not changed.
class SaveGuard {
 public:
  explicit SaveGuard(torch::optim::Optimizer& optimizer);
  ~SaveGuard();
  SaveGuard(const SaveGuard&) = delete;  // its address is the entry's key
  SaveGuard& operator=(const SaveGuard&) = delete;

 private:
  torch::optim::Optimizer& optimizer_;
};

/// The fields of a state, without undefined tensors. For LibTorch's own classes the tensors are the
/// state's; other classes are read through their serialize(), which copies. Throws InvalidArgument
/// for a class without serialize().
std::vector<StateField> fields_of(const torch::optim::OptimizerParamState& state);

/// A new state with these fields, of the class that `optimizer` uses. Classes not from LibTorch are
/// known only to the optimizer, which makes one in its load(). Throws InvalidArgument if the class
/// cannot take the fields, or the optimizer has no load().
std::unique_ptr<torch::optim::OptimizerParamState> make_state(
    torch::optim::Optimizer& optimizer, const std::vector<StateField>& fields);

/// Creates the state of parameters that have none, if the class does so in its constructor and not
/// in step(), as Adagrad.
void create_expected_state(torch::optim::Optimizer& optimizer);

/// All fields of the state of a LibTorch class; empty for other classes.
std::vector<KnownField> known_fields_of(const torch::optim::Optimizer& optimizer);

/// A torch::optim::Optimizer, stepped by its own step() or by LibTorch's fused kernels.
class LibTorchOptimizer final : public WrappedOptimizer {
 public:
  /// `optimizer` outlives this.
  LibTorchOptimizer(torch::optim::Optimizer& optimizer, bool fused)
      : optimizer_(optimizer), fused_(fused) {}

  std::string class_name() const override;
  std::string problem(const DistributedOptimizerOptions& options) const override;
  Groups& groups() override { return optimizer_.param_groups(); }
  std::optional<bool> needs_whole_tensors(std::size_t group) const override;
  at::Tensor step(const LossClosure& closure) override;
  bool steps_leaves_separately() const override;
  void step_leaves(std::vector<std::vector<at::Tensor>> leaves) override;
  std::shared_ptr<void> keep_groups() override;
  bool has_state(const at::Tensor& leaf) const override;
  std::optional<std::vector<StateField>> state(const at::Tensor& leaf) const override;
  void set_state(const at::Tensor& leaf, const std::vector<StateField>& fields) override;
  void erase_state(const at::Tensor& leaf) override;
  void create_expected_state() override;
  std::vector<KnownField> known_fields() override;
  std::size_t count_accepted(const std::vector<StateField>& fields) override;
  void refuse_own_save() override { save_guard_.emplace(optimizer_); }
  void save(torch::serialize::OutputArchive& archive) const override { optimizer_.save(archive); }
  void load(torch::serialize::InputArchive& archive) override { optimizer_.load(archive); }
  void broadcast_state(int root, ProcessSet& set) override;

 private:
  torch::optim::Optimizer& optimizer_;
  const bool fused_;
  std::optional<SaveGuard> save_guard_;
};

}  // namespace kolo::train

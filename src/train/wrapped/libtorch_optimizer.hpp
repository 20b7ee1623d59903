#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
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

#include "kolo/process_set.hpp"
#include "kolo/torch/distributed_optimizer_options.hpp"

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

/// A field of the state that an optimizer keeps for a parameter: a tensor or a number.
struct StateField {
  std::string name;
  c10::IValue value;
};

/// A field that an optimizer's class is known to keep: a tensor of the parameter's shape and dtype,
/// or a number of steps.
struct KnownField {
  std::string name;
  bool is_tensor;
  bool is_optional;  ///< only kept with some options
};

/// Whether the field has one element for every element of the parameter.
inline bool is_elementwise(const StateField& field, const at::Tensor& parameter) {
  return field.value.isTensor() && field.value.toTensor().sizes() == parameter.sizes();
}

/// The interface of the training layer to the optimizer that a DistributedOptimizer wraps. It steps
/// leaves, which are parameters or shards of them, with the options of a parameter group, and reads
/// and writes the state of a leaf as fields.
class WrappedOptimizer {
 public:
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;
  using LossClosure = torch::optim::Optimizer::LossClosure;

  virtual ~WrappedOptimizer() = default;

  virtual std::string class_name() const = 0;
  /// The reason why it cannot be wrapped with these options, in which `shard` is set, and what to
  /// do; empty if it can.
  virtual std::string problem(const DistributedOptimizerOptions& options) const = 0;
  virtual Groups& groups() = 0;
  /// What the options or the class of a group say, see kolo::TensorNeeds; none if they say nothing.
  virtual std::optional<bool> needs_whole_tensors(std::size_t group) const = 0;

  /// Steps the parameters of all groups, after `closure` if there is one; returns its result.
  virtual at::Tensor step(const LossClosure& closure) = 0;
  /// Whether each leaf may be stepped in a call of its own. Other optimizers may count steps, or
  /// use something of all leaves, so that a step is one call with all of them.
  virtual bool steps_leaves_separately() const = 0;
  /// Steps `leaves[i]`, all of which have a gradient, with the options of group i. The groups hold
  /// their own parameters again afterwards.
  virtual void step_leaves(std::vector<std::vector<at::Tensor>> leaves) = 0;

  /// Until the result is destroyed, steps change nothing of the groups that lasts: their options
  /// are then as they are now.
  virtual std::shared_ptr<void> keep_groups() = 0;

  virtual bool has_state(const at::Tensor& leaf) const = 0;
  /// The state of a leaf, if it has any. Tensors may be the optimizer's own. Throws InvalidArgument
  /// for state that cannot be read.
  virtual std::optional<std::vector<StateField>> state(const at::Tensor& leaf) const = 0;
  /// Throws InvalidArgument if the optimizer cannot take these fields.
  virtual void set_state(const at::Tensor& leaf, const std::vector<StateField>& fields) = 0;
  virtual void erase_state(const at::Tensor& leaf) = 0;
  /// The master copy that load() has found for a parameter that is frozen: whole, until it is
  /// sharded. Undefined if there is none.
  at::Tensor master(const at::Tensor& parameter) const {
    const auto found = masters_.find(parameter.unsafeGetTensorImpl());
    return found == masters_.end() ? at::Tensor() : found->second.second;
  }
  /// An undefined one removes it.
  void set_master(const at::Tensor& parameter, const at::Tensor& master) {
    masters_.erase(parameter.unsafeGetTensorImpl());
    if (master.defined())
      masters_.emplace(parameter.unsafeGetTensorImpl(), std::pair(parameter, master));
  }
  /// Creates the state that the class expects the parameters of its groups to have before a step;
  /// most classes expect none. Steps do this themselves.
  virtual void create_expected_state() = 0;

  /// All fields that the optimizer's class keeps for a leaf; empty for an unknown class.
  virtual std::vector<KnownField> known_fields() = 0;
  /// How many of these fields a new state would keep. Throws like set_state().
  virtual std::size_t count_accepted(const std::vector<StateField>& fields) = 0;

  /// From now on the optimizer's own save() throws: it would write only this rank's shards.
  virtual void refuse_own_save() = 0;
  virtual void save(torch::serialize::OutputArchive& archive) const = 0;
  virtual void load(torch::serialize::InputArchive& archive) = 0;
  /// Copies the state of the world rank `root` to all ranks of `set`. Collective.
  virtual void broadcast_state(int root, ProcessSet& set) = 0;

 private:
  // By the address of the parameter, which is kept, so that no other has it.
  std::unordered_map<const void*, std::pair<at::Tensor, at::Tensor>> masters_;
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

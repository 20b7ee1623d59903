#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/optim/optimizer.h>

#include "kolo/process_set.hpp"
#include "kolo/torch/distributed_optimizer_options.hpp"

namespace kolo::train {

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

}  // namespace kolo::train

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "train/gradients/gradient_reducer.hpp"
#include "train/gradients/training_context.hpp"
#include "train/wrapped/options.hpp"

namespace kolo::train {

/// The gradient reducers of an optimizer: one for the parameters known at construction, and one for
/// those of each later addition.
class GradientReducers {
 public:
  using Reducers = std::vector<std::unique_ptr<GradientReducer>>;

  /// `model` returns its parameters as they are now, whose names are used in error texts.
  /// `before_gradient` is called before each gradient is added. `option_sync` outlives this.
  GradientReducers(TrainingContext& context, const OptionSync& option_sync,
                   std::function<TrainingContext::NamedTensors()> model,
                   std::function<void()> before_gradient);

  /// Adds the parameters of all groups that require gradients and have no reducer yet, after all
  /// ranks have agreed on them. A non-empty `problem` with this rank's arguments becomes an error
  /// on all ranks. Collective.
  void add_first(const std::string& problem);
  /// Adds parameters that have appeared since, if there are any, after calling `before`. Collective
  /// then.
  void add_new(const std::function<void()>& before);
  /// Replaces all reducers by one, whose number is `additions`. Collective.
  void rebuild(std::int64_t additions);

  /// Trained and frozen parameters of the groups and the model, each once.
  std::vector<ReducedParameter> all_parameters() const;
  /// Parameters of the groups that no reducer has: frozen, or added since the last step.
  std::vector<ReducedParameter> unreduced_parameters() const;
  Reducers::const_iterator begin() const { return reducers_.begin(); }
  Reducers::const_iterator end() const { return reducers_.end(); }
  /// The names of operations depend on both: they are equal on all ranks unless some have joined.
  std::int64_t additions() const { return additions_; }
  std::int64_t layouts() const;

  /// The reducer of a parameter, and its index there. Throws InvalidArgument, naming `call`, if
  /// there is none.
  std::pair<const GradientReducer*, std::size_t> find(const at::Tensor& parameter,
                                                      const std::string& call) const;
  bool any(bool (GradientReducer::*has)() const) const;
  /// The units of reducers whose parameters are gathered on use.
  std::vector<GatheredUnits*> units() const;
  /// Takes part in gathering a unit of the reducer with this prefix for other ranks.
  void gather_for_others(const std::string& of, std::size_t unit, std::size_t slot) const;
  /// Reduces the remaining gradients of the step. Throws the first error after all
  /// buckets have completed.
  void reduce_all();
  /// Ends a step that cannot be reduced: undefines its gradients once no operation uses them. Not
  /// collective.
  void abandon();
  /// Ends a step. If its reduced gradients are not used, restores the residuals from before it.
  void finish_residuals(bool is_used);
  /// From now on gradients are `factor` times as large as before.
  void rescale_residuals(double factor);
  std::vector<at::Tensor> gradients() const;
  void for_each_gradient(const GradientReducer::GradientVisitor& visit) const;
  /// Limits each element of the gradients to [-max_value, max_value].
  void clip_values(double max_value) const;
  /// See GradientReducer. Returns the names of the parameters.
  std::vector<std::string> drop_undefined() const;
  void drop(const std::vector<std::string>& names) const;
  void clear_gradients();
  void remove_stand_ins();
  /// Once a step has laid out the first shards.
  bool are_sharded() const;
  /// Throws InvalidArgument if a parameter in pieces is in a group that needs whole tensors now.
  void require_whole() const;
  /// The name of a parameter that has changed since its gradient arrived; empty if none has.
  std::string changed_since_arrival() const;

 private:
  using Parameters = std::vector<ReducedParameter>;

  void learn_names();
  std::string name_of(const at::Tensor& parameter, std::size_t index) const;
  ReducedParameter describe(const at::Tensor& tensor, std::size_t number) const;
  Parameters parameters_of_groups() const;
  Parameters new_parameters() const;
  void assign_groups(Parameters& parameters) const;
  std::string choose_whole(Parameters& parameters) const;
  void add(Parameters parameters, const Parameters& frozen, const std::string& problem);
  void choose_memory(const Parameters& parameters, const std::string& prefix);
  void place_frozen(const Parameters& frozen, const std::string& prefix);

  TrainingContext& context_;
  const OptionSync& option_sync_;
  struct Known {
    std::string name;
    std::size_t place;  // in the model
  };
  const std::function<TrainingContext::NamedTensors()> model_;
  std::unordered_map<const void*, Known> names_;
  std::vector<at::Tensor> named_;  // in the model's order
  std::unordered_set<const void*> were_reduced_;
  const std::function<void()> before_gradient_;
  std::int64_t additions_ = 0;
  Reducers reducers_;
};

}  // namespace kolo::train

#include "train/gradients/gradient_reducers.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>

#include "base/log.hpp"
#include "kolo/agreement.hpp"
#include "kolo/error.hpp"
#include "train/gradients/global_gradients.hpp"
#include "train/gradients/parameter_checks.hpp"
#include "train/sharding/operator_watch.hpp"
#include "train/tensors/deferred.hpp"
#include "train/tensors/parameter_storage.hpp"
#include "train/wrapped/whole_tensors.hpp"

namespace kolo::train {
namespace {

/// The frozen parameters that can be moved, on the device of the trained parameters.
std::vector<ReducedParameter> frozen_among(const std::vector<ReducedParameter>& all) {
  if (all.empty()) return {};
  const auto trained = std::ranges::find_if(
      all, [](const ReducedParameter& parameter) { return parameter.tensor.requires_grad(); });
  const at::Tensor& first = (trained != all.end() ? *trained : all.front()).tensor;
  return FrozenParameters::movable(all, first.device());
}

/// A frozen one without elements is not movable, but units of an earlier optimizer may have it:
/// then no rank could read it alone.
void take_empty_from_units(const at::Tensor& tensor) {
  if (!is_gathered_on_use(tensor) || tensor.storage().nbytes() > 0) return;
  if (!tensor.requires_grad() && !GradHooks::are_on(tensor)) take_from_units(tensor);
}

}  // namespace

GradientReducers::GradientReducers(TrainingContext& context, const OptionSync& option_sync,
                                   std::function<TrainingContext::NamedTensors()> model,
                                   std::function<void()> before_gradient)
    : context_(context),
      option_sync_(option_sync),
      model_(std::move(model)),
      before_gradient_(std::move(before_gradient)) {}

/// Those of modules that the program has registered since, too.
void GradientReducers::learn_names() {
  for (const auto& [name, tensor] : model_()) {
    if (!tensor.defined()) continue;
    const Known known{name, names_.size()};
    if (names_.emplace(tensor.unsafeGetTensorImpl(), known).second) named_.push_back(tensor);
  }
}

void GradientReducers::add_first(const std::string& problem) {
  learn_names();
  const Parameters all = all_parameters();
  Parameters parameters = new_parameters();
  Parameters frozen = frozen_among(all);
  if (problem.empty()) {
    assign_groups(parameters);
    assign_groups(frozen);
  }
  add(std::move(parameters), frozen, problem);
  TrainingContext::NamedTensors kept;
  for (const ReducedParameter& parameter : all) {
    take_empty_from_units(parameter.tensor);
    kept.emplace_back(parameter.name, parameter.tensor);
  }
  fill_deferred(kept, context_.set);
}

void GradientReducers::add_new(const std::function<void()>& before) {
  if (new_parameters().empty()) return;
  before();
  learn_names();
  add(new_parameters(), {}, {});
}

void GradientReducers::rebuild(std::int64_t additions) {
  additions_ = additions;
  Residuals::ByParameter residuals;
  for (const auto& reducer : reducers_) residuals.merge(reducer->layouts().residuals().take());
  reducers_.clear();
  add_first({});
  for (const auto& reducer : reducers_) reducer->layouts().lay_out_residuals(residuals);
}

std::string GradientReducers::name_of(const at::Tensor& parameter, std::size_t index) const {
  const auto found = names_.find(parameter.unsafeGetTensorImpl());
  return found != names_.end() ? found->second.name : "parameter " + std::to_string(index);
}

/// `number` is the index among the parameters of all groups.
ReducedParameter GradientReducers::describe(const at::Tensor& tensor, std::size_t number) const {
  const auto known = names_.find(tensor.unsafeGetTensorImpl());
  return {
      .tensor = tensor,
      .name = name_of(tensor, number),
      .place = known != names_.end() ? known->second.place : names_.size() + number,
  };
}

/// In the order of groups, without duplicates.
GradientReducers::Parameters GradientReducers::parameters_of_groups() const {
  Parameters parameters;
  std::unordered_set<const void*> known;
  std::size_t number = 0;
  for (const auto& group : context_.groups) {
    for (const at::Tensor& parameter : group.params()) {
      const std::size_t own_number = number++;
      if (!known.insert(parameter.unsafeGetTensorImpl()).second) continue;
      parameters.push_back(describe(parameter, own_number));
    }
  }
  return parameters;
}

GradientReducers::Parameters GradientReducers::unreduced_parameters() const {
  std::unordered_set<const void*> known;
  for (const auto& reducer : reducers_) {
    for (const ReducedParameter& parameter : reducer->parameters()) {
      known.insert(parameter.tensor.unsafeGetTensorImpl());
    }
  }
  Parameters unreduced = parameters_of_groups();
  std::erase_if(unreduced, [&](const ReducedParameter& parameter) {
    return known.contains(parameter.tensor.unsafeGetTensorImpl());
  });
  return unreduced;
}

/// Those that get gradients. One that was reduced stays when it is frozen: a rank that has joined
/// meanwhile does not know it.
GradientReducers::Parameters GradientReducers::new_parameters() const {
  Parameters parameters = unreduced_parameters();
  std::erase_if(parameters, [this](const ReducedParameter& parameter) {
    return !parameter.tensor.requires_grad() &&
           !were_reduced_.contains(parameter.tensor.unsafeGetTensorImpl());
  });
  return parameters;
}

GradientReducers::Parameters GradientReducers::all_parameters() const {
  Parameters all = parameters_of_groups();
  std::unordered_set<const void*> known;
  for (const ReducedParameter& parameter : all) {
    known.insert(parameter.tensor.unsafeGetTensorImpl());
  }
  for (const at::Tensor& tensor : named_) {
    if (known.insert(tensor.unsafeGetTensorImpl()).second) all.push_back(describe(tensor, 0));
  }
  return all;
}

/// Sets the group of each parameter that the options list in one.
void GradientReducers::assign_groups(Parameters& parameters) const {
  const DistributedOptimizerOptions& options = context_.options;
  std::unordered_map<const void*, int> groups;
  for (std::size_t i = 0; i < options.groups.size(); ++i) {
    for (const at::Tensor& tensor : options.groups[i]) {
      groups[tensor.unsafeGetTensorImpl()] = static_cast<int>(i);
    }
  }
  for (ReducedParameter& parameter : parameters) {
    const auto found = groups.find(parameter.tensor.unsafeGetTensorImpl());
    if (found != groups.end()) parameter.group = found->second;
  }
}

/// If the optimizer is sharded: finds out which parameters must be whole for their groups. Returns
/// why a group cannot be sharded.
std::string GradientReducers::choose_whole(Parameters& parameters) const {
  std::map<std::size_t, std::vector<ReducedParameter*>> by_group;
  for (ReducedParameter& parameter : parameters) {
    const std::optional<std::size_t> group = option_sync_.group_of(parameter.tensor);
    if (group) by_group[*group].push_back(&parameter);
  }
  bool is_told = false;
  for (const auto& [group, members] : by_group) {
    std::vector<at::Tensor> tensors;
    for (const ReducedParameter* const member : members) tensors.push_back(member->tensor);
    const Wholeness whole = wholeness_of(context_.wrapped, group, tensors);
    if (!whole.problem.empty()) return whole.problem;
    for (ReducedParameter* const member : members) member->is_whole = whole.is_needed;
    if (!whole.is_needed || !whole.was_probed || std::exchange(is_told, true)) continue;
    if (context_.set.rank() != 0) continue;
    KOLO_LOG(Warn)
        << "DistributedOptimizer: " << context_.wrapped.class_name()
        << " steps a probe otherwise in pieces than whole, so each of its parameters has "
           "one rank that steps it. "
        << kHowToSay << ", to say so.";
  }
  return {};
}

void GradientReducers::require_whole() const {
  std::vector<bool> needs_whole;
  for (std::size_t i = 0; i < context_.groups.size(); ++i) {
    needs_whole.push_back(context_.wrapped.needs_whole_tensors(i).value_or(false));
  }
  for (const auto& reducer : reducers_) {
    for (const ReducedParameter& parameter : reducer->parameters()) {
      const std::optional<std::size_t> group = option_sync_.group_of(parameter.tensor);
      if (parameter.is_whole || !group || !needs_whole[*group]) continue;
      throw InvalidArgument(
          "DistributedOptimizer: parameter '" + parameter.name + "' is in parameter group " +
          std::to_string(*group) +
          ", which needs whole tensors, but it is sharded in pieces for the group "
          "that it was in before. Put it there before the optimizer is wrapped.");
    }
  }
}

void GradientReducers::add(Parameters parameters, const Parameters& frozen,
                           const std::string& problem) {
  const std::string prefix = context_.prefix + "." + std::to_string(additions_++);
  std::string own_problem = problem;
  if (own_problem.empty()) {
    own_problem = apply_compression_policy(context_.options, context_.compression, parameters);
  }
  if (own_problem.empty() && context_.is_sharded()) own_problem = choose_whole(parameters);
  if (own_problem.empty() && !parameters.empty()) {
    const ReducedParameter& first =
        reducers_.empty() ? parameters.front() : reducers_.front()->parameters().front();
    own_problem = problem_with(parameters, first, context_.options);
  }
  std::vector<NamedValue> facts = facts_of(context_.options, parameters, frozen);
  for (NamedValue& fact : facts_of(option_sync_, parameters)) facts.push_back(std::move(fact));
  check_agreement("DistributedOptimizer", facts, own_problem,
                  {.name = prefix + ".agreement", .process_set = &context_.set});
  if (context_.sets.sharded == nullptr) {
    context_.sets = make_shard_sets(
        context_.set, context_.is_sharded() ? context_.options.shard_scope : ShardScope::World);
  }
  // An earlier optimizer may still gather them in its units.
  for (const Parameters* const some : {&std::as_const(parameters), &frozen}) {
    for (const ReducedParameter& parameter : *some) {
      if (is_gathered_on_use(parameter.tensor)) take_from_units(parameter.tensor);
    }
  }
  forget_unused_units();
  choose_memory(parameters.empty() ? frozen : parameters, prefix);
  if (!parameters.empty()) {
    for (const ReducedParameter& parameter : parameters) {
      were_reduced_.insert(parameter.tensor.unsafeGetTensorImpl());
    }
    reducers_.push_back(std::make_unique<GradientReducer>(
        std::move(parameters), context_.gathers_on_use ? frozen : Parameters(),
        context_.reduction_setup(), prefix, before_gradient_));
  }
  if (!frozen.empty()) place_frozen(frozen, prefix);
}

/// With Shard::Full, decides whether parameters are gathered on use. Otherwise each rank keeps
/// whole parameters, and deferred ones are filled.
void GradientReducers::choose_memory(const Parameters& parameters, const std::string& prefix) {
  if (parameters.empty()) return;
  if (context_.options.shard == Shard::Full) {
    const OperationOptions probe{.name = prefix + ".probe",
                                 .process_set = context_.sets.sharded.get()};
    context_.gathers_on_use = !can_keep_one_copy(parameters.front().tensor.device(), probe);
    return;
  }
  TrainingContext::NamedTensors added;
  for (const ReducedParameter& parameter : parameters) {
    added.emplace_back(parameter.name, parameter.tensor);
  }
  fill_deferred(added, context_.set);
}

/// Only with Shard::Full: moves frozen parameters to the node's copy, or adds them as parts of
/// units. Without trained parameters there are no units.
void GradientReducers::place_frozen(const Parameters& frozen, const std::string& prefix) {
  if (context_.options.shard != Shard::Full) return;
  if (!context_.gathers_on_use) {
    context_.frozen.share(frozen,
                          {.name = prefix + ".frozen", .process_set = context_.sets.sharded.get()});
  } else if (!reducers_.empty()) {
    context_.frozen.add(frozen, *reducers_.back()->shards()->memory().units());
  }
}

std::int64_t GradientReducers::layouts() const {
  std::int64_t layouts = 0;
  for (const auto& reducer : reducers_) layouts += reducer->layouts().count();
  return layouts;
}

std::pair<const GradientReducer*, std::size_t> GradientReducers::find(
    const at::Tensor& parameter, const std::string& call) const {
  for (const auto& reducer : reducers_) {
    const auto& parameters = reducer->parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].tensor.is_same(parameter)) return {reducer.get(), i};
    }
  }
  throw InvalidArgument("DistributedOptimizer: " + call +
                        " of a tensor that it does not train. Give a parameter of one of its "
                        "groups that requires a gradient.");
}

bool GradientReducers::any(bool (GradientReducer::*has)() const) const {
  return std::ranges::any_of(reducers_, [has](const auto& reducer) { return ((*reducer).*has)(); });
}

std::vector<GatheredUnits*> GradientReducers::units() const {
  std::vector<GatheredUnits*> all;
  for (const auto& reducer : reducers_) {
    if (reducer->shards() == nullptr) continue;
    if (GatheredUnits* const units = reducer->shards()->memory().units()) all.push_back(units);
  }
  return all;
}

void GradientReducers::gather_for_others(const std::string& of, std::size_t unit,
                                         std::size_t slot) const {
  for (const auto& reducer : reducers_) {
    if (reducer->prefix() != of) continue;
    reducer->shards()->memory().units()->gather_for_others(unit, slot);
  }
}

void GradientReducers::reduce_all() {
  StepState& step = context_.step;
  for (const auto& reducer : reducers_) reducer->submit_rest();
  step.times.buckets.clear();
  std::exception_ptr first_error;
  for (const auto& reducer : reducers_) {
    if (const std::exception_ptr error = reducer->finish(); !first_error) first_error = error;
  }
  step.first_gradient = {};
  step.backward.restart();
  step.phases.finish(first_error == nullptr);
  if (!first_error) return;
  finish_residuals(/*is_used=*/false);
  std::rethrow_exception(first_error);
}

void GradientReducers::abandon() {
  StepState& step = context_.step;
  step.times.buckets.clear();
  for (const auto& reducer : reducers_) static_cast<void>(reducer->finish());
  step.first_gradient = {};
  step.backward.restart();
  step.phases.restart();
  finish_residuals(/*is_used=*/false);
  clear_gradients();
}

void GradientReducers::finish_residuals(bool is_used) {
  for (const auto& reducer : reducers_) {
    is_used ? reducer->layouts().residuals().keep() : reducer->layouts().residuals().restore();
  }
}

void GradientReducers::rescale_residuals(double factor) {
  for (const auto& reducer : reducers_) reducer->layouts().residuals().rescale(factor);
}

std::vector<at::Tensor> GradientReducers::gradients() const {
  std::vector<at::Tensor> gradients;
  for (const auto& reducer : reducers_) reducer->append_gradients(gradients);
  return gradients;
}

void GradientReducers::for_each_gradient(const GradientReducer::GradientVisitor& visit) const {
  const at::NoGradGuard no_grad;
  for (const auto& reducer : reducers_) reducer->for_each_gradient(visit);
}

void GradientReducers::clip_values(double max_value) const {
  for_each_gradient([&](const std::string&, at::Tensor& gradient) {
    if (gradient.is_sparse()) gradient = gradient.coalesce();
    real_elements(gradient).clamp_(-max_value, max_value);
  });
}

std::vector<std::string> GradientReducers::drop_undefined() const {
  std::vector<std::string> names;
  for (const auto& reducer : reducers_) reducer->drop_undefined(names);
  return names;
}

void GradientReducers::drop(const std::vector<std::string>& names) const {
  for (const auto& reducer : reducers_) {
    for (const std::string& name : names) reducer->drop(name);
  }
}

void GradientReducers::remove_stand_ins() {
  for (const auto& reducer : reducers_) reducer->remove_stand_ins();
}

void GradientReducers::clear_gradients() {
  for (const auto& reducer : reducers_) reducer->clear_gradients();
}

bool GradientReducers::are_sharded() const {
  return std::ranges::any_of(reducers_,
                             [](const auto& reducer) { return reducer->shards() != nullptr; });
}

std::string GradientReducers::changed_since_arrival() const {
  for (const auto& reducer : reducers_) {
    if (std::string name = reducer->changed_since_arrival(); !name.empty()) return name;
  }
  return {};
}

}  // namespace kolo::train

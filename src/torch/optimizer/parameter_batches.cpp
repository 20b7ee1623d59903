#include "torch/optimizer/parameter_batches.hpp"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "torch/optimizer/optimizer_checks.hpp"
#include "torch/tensors/agreement.hpp"
#include "torch/tensors/deferred.hpp"

namespace kolo::tensors {

ParameterBatches::ParameterBatches(TrainingContext& context,
                                   const TrainingContext::NamedTensors& names,
                                   std::function<void()> before_gradient)
    : context_(context), before_gradient_(std::move(before_gradient)) {
  for (const auto& [name, tensor] : names) {
    if (tensor.defined()) {
      names_.emplace(tensor.unsafeGetTensorImpl(), Known{name, names_.size()});
    }
  }
}

void ParameterBatches::add_first(const std::string& problem) {
  std::vector<ReducedParameter> parameters = unknown_parameters();
  if (problem.empty()) assign_groups(parameters);
  add(std::move(parameters), problem);
}

void ParameterBatches::add_new() {
  std::vector<ReducedParameter> parameters = unknown_parameters();
  if (!parameters.empty()) add(std::move(parameters), {});
}

void ParameterBatches::rebuild(std::int64_t additions) {
  additions_ = additions;
  reducers_.clear();
  add_first({});
}

std::string ParameterBatches::name_of(const at::Tensor& parameter, std::size_t index) const {
  const auto found = names_.find(parameter.unsafeGetTensorImpl());
  return found != names_.end() ? found->second.name : "parameter " + std::to_string(index);
}

/// In the order of groups, each once.
std::vector<ReducedParameter> ParameterBatches::unknown_parameters() const {
  std::unordered_set<const void*> known;
  for (const auto& reducer : reducers_) {
    for (const ReducedParameter& parameter : reducer->parameters()) {
      known.insert(parameter.tensor.unsafeGetTensorImpl());
    }
  }
  std::vector<ReducedParameter> unknown;
  std::size_t index = 0;
  for (std::size_t group = 0; group < context_.groups.size(); ++group) {
    for (const at::Tensor& parameter : context_.groups[group].params()) {
      const std::size_t number = index++;
      if (!parameter.requires_grad() || !known.insert(parameter.unsafeGetTensorImpl()).second) {
        continue;
      }
      const auto known_name = names_.find(parameter.unsafeGetTensorImpl());
      unknown.push_back({.tensor = parameter,
                         .name = name_of(parameter, number),
                         .optimizer_group = context_.is_sharded() ? group : 0,
                         .place = known_name != names_.end() ? known_name->second.place
                                                             : names_.size() + number});
    }
  }
  return unknown;
}

/// Sets each parameter's group of the options: an explicit one, or one of `num_groups` equal ones.
void ParameterBatches::assign_groups(std::vector<ReducedParameter>& parameters) const {
  const DistributedOptimizerOptions& options = context_.options;
  std::unordered_map<const void*, int> explicit_groups;
  for (std::size_t i = 0; i < options.groups.size(); ++i) {
    for (const at::Tensor& tensor : options.groups[i]) {
      explicit_groups[tensor.unsafeGetTensorImpl()] = static_cast<int>(i);
    }
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto found = explicit_groups.find(parameters[i].tensor.unsafeGetTensorImpl());
    if (found != explicit_groups.end()) {
      parameters[i].group = found->second;
    } else if (options.num_groups > 0) {
      parameters[i].group =
          static_cast<int>(i * static_cast<std::size_t>(options.num_groups) / parameters.size());
    }
  }
}

void ParameterBatches::add(std::vector<ReducedParameter> parameters, const std::string& problem) {
  const std::string prefix = context_.prefix + "." + std::to_string(additions_++);
  std::string own_problem = problem;
  if (own_problem.empty() && !parameters.empty()) {
    const ReducedParameter& first =
        reducers_.empty() ? parameters.front() : reducers_.front()->parameters().front();
    own_problem = problem_with(parameters, first, context_.options);
  }
  agree(context_.set, prefix + ".agreement", "DistributedOptimizer",
        facts_of(context_.options, parameters), own_problem);
  if (context_.sets.sharded == nullptr) {
    context_.sets = make_shard_sets(
        context_.set, context_.is_sharded() ? context_.options.shard_scope : ShardScope::World);
  }
  if (parameters.empty()) return;
  if (context_.options.shard != Shard::Full) {
    TrainingContext::NamedTensors added;
    for (const ReducedParameter& parameter : parameters) {
      added.emplace_back(parameter.name, parameter.tensor);
    }
    fill_deferred(added, context_.set);
  }
  reducers_.push_back(std::make_unique<GradientReducer>(
      std::move(parameters), context_.reduction_setup(), prefix, before_gradient_));
}

std::int64_t ParameterBatches::layouts() const {
  std::int64_t layouts = 0;
  for (const auto& reducer : reducers_) layouts += reducer->layouts();
  return layouts;
}

bool ParameterBatches::any(bool (GradientReducer::*has)() const) const {
  return std::ranges::any_of(reducers_, [has](const auto& reducer) { return ((*reducer).*has)(); });
}

std::vector<GatheredUnits*> ParameterBatches::units() const {
  std::vector<GatheredUnits*> all;
  for (const auto& reducer : reducers_) {
    if (reducer->shards() == nullptr) continue;
    if (GatheredUnits* const units = reducer->shards()->memory().units()) all.push_back(units);
  }
  return all;
}

void ParameterBatches::take_part(const GatherCommand& command) const {
  for (const auto& reducer : reducers_) {
    if (reducer->prefix() != command.batch) continue;
    reducer->shards()->memory().units()->take_part(command.unit, command.slot);
  }
}

void ParameterBatches::reduce_all() {
  StepState& step = context_.step;
  for (const auto& reducer : reducers_) reducer->submit_rest();
  step.times.buckets.clear();
  std::exception_ptr first_error;
  for (const auto& reducer : reducers_) {
    if (const std::exception_ptr error = reducer->finish(); !first_error) first_error = error;
  }
  step.first_gradient = {};
  step.phases.finish(first_error == nullptr);
  if (first_error) std::rethrow_exception(first_error);
}

std::vector<at::Tensor> ParameterBatches::gradients() const {
  std::vector<at::Tensor> gradients;
  for (const auto& reducer : reducers_) reducer->append_gradients(gradients);
  return gradients;
}

void ParameterBatches::clear_gradients() {
  for (const auto& reducer : reducers_) reducer->clear_gradients();
}

bool ParameterBatches::are_sharded() const {
  return std::ranges::any_of(reducers_,
                             [](const auto& reducer) { return reducer->shards() != nullptr; });
}

std::string ParameterBatches::changed_since_arrival() const {
  for (const auto& reducer : reducers_) {
    if (std::string name = reducer->changed_since_arrival(); !name.empty()) return name;
  }
  return {};
}

}  // namespace kolo::tensors

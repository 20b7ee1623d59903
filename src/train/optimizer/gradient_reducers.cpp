#include "train/optimizer/gradient_reducers.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <nlohmann/json.hpp>

#include "kolo/agreement.hpp"
#include "kolo/error.hpp"
#include "kolo/json_objects.hpp"
#include "kolo/torch/tensor_collectives.hpp"
#include "train/gradients/global_gradients.hpp"
#include "train/optimizer/optimizer_checks.hpp"
#include "train/optimizer/rank_comparison.hpp"
#include "train/sharding/operator_watch.hpp"
#include "train/tensors/deferred.hpp"
#include "train/tensors/parameter_storage.hpp"

namespace kolo::train {
namespace {

struct ToJson {
  nlohmann::json operator()(const GatherCommand& gather) const {
    return {{"call", "gather"},
            {"reducer", gather.reducer},
            {"unit", gather.unit},
            {"slot", gather.slot}};
  }
  nlohmann::json operator()(const PassCommand& pass) const {
    return {{"call", "pass"}, {"passes", pass.passes}};
  }
  nlohmann::json operator()(const ReduceCommand& reduce) const {
    return {{"call", "reduce"}, {"is_discarded", reduce.is_discarded}};
  }
  nlohmann::json operator()(const ClipCommand& clip) const {
    return {{"call", "clip"}, {"max_norm", clip.max_norm}, {"norm_type", clip.norm_type}};
  }
  nlohmann::json operator()(const ClipValueCommand& clip) const {
    return {{"call", "clip_value"}, {"max_value", clip.max_value}};
  }
  nlohmann::json operator()(const DropCommand& drop) const {
    return {{"call", "drop"}, {"parameters", drop.parameters}};
  }
  nlohmann::json operator()(const UnscaleCommand& unscale) const {
    return {{"call", "unscale"}, {"scale", unscale.scale}};
  }
  nlohmann::json operator()(const FindOverflowCommand&) const {
    return {{"call", "find_overflow"}};
  }
  nlohmann::json operator()(const UpdateCommand& update) const {
    return {{"call", "update"}, {"options", update.options}};
  }
  nlohmann::json operator()(const SkipCommand&) const { return {{"call", "skip"}}; }
  nlohmann::json operator()(const DiscardCommand&) const { return {{"call", "discard"}}; }
  nlohmann::json operator()(const RefuseCommand&) const { return {{"call", "refuse"}}; }
};

}  // namespace

nlohmann::json to_json(const StepCommand& command) { return std::visit(ToJson{}, command); }

StepCommand command_from(const nlohmann::json& json) {
  const std::string call = json.at("call");
  if (call == "gather") return GatherCommand{json.at("reducer"), json.at("unit"), json.at("slot")};
  if (call == "pass") return PassCommand{json.at("passes")};
  if (call == "reduce") return ReduceCommand{json.at("is_discarded")};
  if (call == "clip") return ClipCommand{json.at("max_norm"), json.at("norm_type")};
  if (call == "clip_value") return ClipValueCommand{json.at("max_value")};
  if (call == "drop") return DropCommand{json.at("parameters")};
  if (call == "unscale") return UnscaleCommand{json.at("scale")};
  if (call == "find_overflow") return FindOverflowCommand{};
  if (call == "update") return UpdateCommand{json.at("options")};
  if (call == "skip") return SkipCommand{};
  if (call == "discard") return DiscardCommand{};
  if (call == "refuse") return RefuseCommand{};
  throw InvalidArgument("DistributedOptimizer: a rank sent the unknown command '" + call +
                        "'. Start the same program on all ranks.");
}

namespace {

using ParameterState = DistributedOptimizer::ParameterState;

c10::IValue copy_of(const c10::IValue& value) {
  return value.isTensor() ? c10::IValue(value.toTensor().detach().clone()) : value;
}

/// This rank's leaves of a parameter.
std::vector<ParameterShards::Leaf> leaves_of(const GradientReducer& reducer,
                                             std::size_t parameter) {
  std::vector<ParameterShards::Leaf> own;
  for (std::size_t i = 0; i < reducer.buckets().buckets().size(); ++i) {
    for (const ParameterShards::Leaf& leaf : reducer.shards()->leaves(i)) {
      if (leaf.parameter == parameter) own.push_back(leaf);
    }
  }
  return own;
}

/// What other ranks must know of a field: the type and, unless it has an element for each of the
/// parameter, the shape or the value.
nlohmann::json describe(const StateField& field, const at::Tensor& leaf) {
  if (field.value.isInt()) return {{"integer", field.value.toInt()}};
  if (field.value.isDouble()) return {{"real", field.value.toDouble()}};
  const at::Tensor tensor = field.value.toTensor();
  nlohmann::json described{{"type", static_cast<int>(tensor.scalar_type())}};
  if (!is_elementwise(field, leaf)) described["shape"] = tensor.sizes().vec();
  return described;
}

/// A field that all ranks know, from their pieces of it.
class FieldGathering {
 public:
  FieldGathering(const TrainingContext& context, const at::Tensor& parameter, std::string name)
      : set_(*context.sets.sharded), parameter_(parameter), name_(std::move(name)) {}

  c10::IValue gather(const nlohmann::json& field, int owner,
                     const std::vector<std::pair<std::int64_t, at::Tensor>>& pieces) const {
    if (field.contains("integer")) return field["integer"].get<std::int64_t>();
    if (field.contains("real")) return field["real"].get<double>();
    const auto type =
        at::TensorOptions(field["type"].get<at::ScalarType>()).device(parameter_.device());
    if (field.contains("shape")) return broadcast_whole(field, owner, pieces, type);
    at::Tensor whole = at::zeros({parameter_.numel()}, type);
    for (const auto& [begin, piece] : pieces) {
      whole.narrow(0, begin, piece.numel()).copy_(piece.reshape({-1}));
    }
    // A sum of pieces and zeros.
    allreduce_(whole, {.op = ReduceOp::Sum, .name = name_, .process_set = &set_});
    return whole.view(parameter_.sizes());
  }

 private:
  c10::IValue broadcast_whole(const nlohmann::json& field, int owner,
                              const std::vector<std::pair<std::int64_t, at::Tensor>>& pieces,
                              const at::TensorOptions& type) const {
    at::Tensor whole = at::empty(field["shape"].get<std::vector<std::int64_t>>(), type);
    if (set_.rank() == owner) whole.copy_(pieces.front().second);
    broadcast_(whole, set_.ranks()[static_cast<std::size_t>(owner)],
               {.name = name_, .process_set = &set_});
    return whole;
  }

  ProcessSet& set_;
  const at::Tensor& parameter_;
  const std::string name_;
};

ParameterState gathered_state(const TrainingContext& context, const GradientReducer& reducer,
                              std::size_t parameter) {
  using Pieces = std::vector<std::pair<std::int64_t, at::Tensor>>;
  std::map<std::string, Pieces> pieces;
  nlohmann::json own = nlohmann::json::object();
  for (const ParameterShards::Leaf& leaf : leaves_of(reducer, parameter)) {
    const auto fields = context.wrapped.state(leaf.values);
    if (!fields) continue;
    for (const StateField& field : *fields) {
      own[field.name] = describe(field, leaf.values);
      if (!field.value.isTensor()) continue;
      pieces[field.name].emplace_back(leaf.begin, field.value.toTensor().detach());
    }
  }
  const ReducedParameter& reduced = reducer.parameters()[parameter];
  const std::string name = context.prefix + ".state of " + reduced.name;
  const std::vector<nlohmann::json> all =
      allgather_object(own, {.name = name, .process_set = context.sets.sharded.get()});
  ParameterState state;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    for (const auto& [field, described] : all[rank].items()) {
      if (state.contains(field)) continue;
      const FieldGathering gathering(context, reduced.tensor, name + "." + field);
      state[field] = gathering.gather(described, static_cast<int>(rank), pieces[field]);
    }
  }
  return state;
}

}  // namespace

ParameterState state_of(const TrainingContext& context, const GradientReducer& reducer,
                        std::size_t parameter) {
  const at::NoGradGuard no_grad;
  if (reducer.shards() != nullptr) return gathered_state(context, reducer, parameter);
  ParameterState state;
  if (const auto fields = context.wrapped.state(reducer.parameters()[parameter].tensor)) {
    for (const StateField& field : *fields) state[field.name] = copy_of(field.value);
  }
  return state;
}

void reset_state_of(const TrainingContext& context, const GradientReducer& reducer,
                    std::size_t parameter) {
  if (reducer.shards() == nullptr) {
    return context.wrapped.erase_state(reducer.parameters()[parameter].tensor);
  }
  for (const ParameterShards::Leaf& leaf : leaves_of(reducer, parameter)) {
    context.wrapped.erase_state(leaf.values);
  }
}

namespace {

/// The frozen parameters that can be moved, on the device of the trained parameters.
std::vector<ReducedParameter> frozen_among(const std::vector<ReducedParameter>& all) {
  if (all.empty()) return {};
  const auto trained = std::ranges::find_if(
      all, [](const ReducedParameter& parameter) { return parameter.tensor.requires_grad(); });
  const at::Tensor& first = (trained != all.end() ? *trained : all.front()).tensor;
  return FrozenParameters::movable(all, first.device());
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
  TrainingContext::NamedTensors kept;  // on each rank
  const bool has_one_copy = context_.options.shard == Shard::Full && !context_.gathers_on_use;
  for (const ReducedParameter& parameter : all) {
    if (has_one_copy && parameter.tensor.requires_grad()) continue;
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
  for (const auto& reducer : reducers_) residuals.merge(reducer->residuals().take());
  reducers_.clear();
  add_first({});
  for (const auto& reducer : reducers_) reducer->lay_out_residuals(residuals);
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

void GradientReducers::add(Parameters parameters, const Parameters& frozen,
                           const std::string& problem) {
  const std::string prefix = context_.prefix + "." + std::to_string(additions_++);
  std::string own_problem = problem;
  if (own_problem.empty()) {
    own_problem = apply_compression_policy(context_.options, context_.compression, parameters);
  }
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
  for (const ReducedParameter& parameter : frozen) {
    if (is_gathered_on_use(parameter.tensor)) take_from_units(parameter.tensor);
  }
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
  for (const auto& reducer : reducers_) layouts += reducer->layouts();
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

void GradientReducers::gather_for_others(const GatherCommand& command) const {
  for (const auto& reducer : reducers_) {
    if (reducer->prefix() != command.reducer) continue;
    reducer->shards()->memory().units()->gather_for_others(command.unit, command.slot);
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
    is_used ? reducer->residuals().keep() : reducer->residuals().restore();
  }
}

void GradientReducers::rescale_residuals(double factor) {
  for (const auto& reducer : reducers_) reducer->residuals().rescale(factor);
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

void GradientReducers::end_withholding() {
  for (const auto& reducer : reducers_) reducer->end_withholding();
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

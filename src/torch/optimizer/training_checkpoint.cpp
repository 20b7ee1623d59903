#include "torch/optimizer/training_checkpoint.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "kolo/error.hpp"
#include "kolo/torch/grad_scaler.hpp"
#include "runtime/lane/lane.hpp"
#include "torch/checkpoint/on_all_ranks.hpp"
#include "torch/training/load_training.hpp"
#include "torch/training/model_match.hpp"
#include "torch/training/save_training.hpp"
#include "train/tensors/agreement.hpp"

namespace kolo::train {
namespace {

nlohmann::json describe(const GradScaler& scaler) {
  const GradScaler::State state = scaler.state();
  return {{"scale", state.scale},
          {"growth_factor", state.growth_factor},
          {"backoff_factor", state.backoff_factor},
          {"growth_interval", state.growth_interval},
          {"growth_tracker", state.growth_tracker}};
}

/// Whether both have the same number of groups, and options of the same names and lengths.
bool have_same_options(const nlohmann::json& saved, const nlohmann::json& own) {
  if (saved.size() != own.size()) return false;
  for (std::size_t i = 0; i < own.size(); ++i) {
    if (saved[i].size() != own[i].size()) return false;
    for (const auto& [name, values] : own[i].items()) {
      if (!saved[i].contains(name) || saved[i][name].size() != values.size()) return false;
    }
  }
  return true;
}

void require_same_scaler(const TrainingDetails& details, const LoadOptions& options) {
  if (!options.strict || details.scaler.has_value() == (options.scaler != nullptr)) return;
  throw InvalidArgument(std::string("it has ") + (options.scaler == nullptr ? "a" : "no") +
                        " GradScaler's state, unlike the program. Give or leave out "
                        "LoadOptions::scaler, or load with strict = false.");
}

void append_whole(const std::vector<ReducedParameter>& parameters, const UpdateType& type,
                  std::vector<TrainingView::Leaf>& leaves) {
  for (const ReducedParameter& parameter : parameters) {
    leaves.push_back({parameter.name, parameter.tensor, parameter.tensor, parameter.tensor, 0,
                      c10::typeMetaToScalarType(type.of(parameter.tensor.options()).dtype())});
  }
}

void append_leaves(const GradientReducer& reducer, const UpdateType& type,
                   std::vector<TrainingView::Leaf>& leaves) {
  const auto& parameters = reducer.parameters();
  if (reducer.shards() == nullptr) return append_whole(parameters, type, leaves);
  for (std::size_t i = 0; i < reducer.buckets().buckets().size(); ++i) {
    for (const ParameterShards::Leaf& leaf : reducer.shards()->leaves(i)) {
      const ReducedParameter& parameter = parameters[leaf.parameter];
      leaves.push_back({parameter.name, parameter.tensor, leaf.elements, leaf.values, leaf.begin,
                        leaf.values.scalar_type()});
    }
  }
}

}  // namespace

TrainingCheckpoint::TrainingCheckpoint(TrainingContext& context, ParameterBatches& batches,
                                       OptionSync& option_sync,
                                       TrainingContext::NamedTensors parameters,
                                       TrainingContext::NamedTensors buffers)
    : context_(context),
      batches_(batches),
      option_sync_(option_sync),
      parameters_(std::move(parameters)),
      buffers_(std::move(buffers)) {}

TrainingView TrainingCheckpoint::view() const {
  const ShardSets& sets = context_.sets;
  TrainingView view{.set = context_.set,
                    .sharded = *sets.sharded,
                    .is_sharded = batches_.are_sharded(),
                    .is_first_replica = sets.replicas == nullptr || sets.replicas->rank() == 0,
                    .model = {.parameters = {},
                              .buffers = buffers_,
                              .aliases = {},
                              .shares = {},
                              .sets_shared_copies = sets.sharded->rank() == 0},
                    .mastered = {},
                    .leaves = {},
                    .stepped = {},
                    .shared = {},
                    .residuals = residuals(),
                    .hook = context_.hook,
                    .wrapped = context_.wrapped};
  add_parameters(view.model);
  add_leaves(view);
  add_shares(view);
  return view;
}

/// Adds the model's parameters, then those of the optimizer that are not in the model.
void TrainingCheckpoint::add_parameters(ModelView& model) const {
  model.add_parameters(parameters_);
  ModelView::Named stepped;
  std::size_t index = 0;
  for (const auto& group : context_.groups) {
    for (const at::Tensor& tensor : group.params()) {
      stepped.emplace_back(batches_.name_of(tensor, index++), tensor);
    }
  }
  model.add_parameters(stepped);
}

/// Adds the leaves that this rank steps.
void TrainingCheckpoint::add_leaves(TrainingView& view) const {
  const UpdateType type{context_.options.master_weights, context_.options.offload};
  for (const auto& reducer : batches_) {
    append_leaves(*reducer, type, view.leaves);
    for (const ReducedParameter& parameter : reducer->parameters()) {
      view.stepped.insert(parameter.name);
      if (reducer->shards() == nullptr) continue;
      view.shared.insert(parameter.name);
      if (!type.has_master(parameter.tensor)) continue;
      view.mastered.emplace_back(parameter.name, parameter.tensor);
    }
  }
  // A parameter may be frozen now, and have state from steps before.
  const std::vector<ReducedParameter> unreduced = batches_.unreduced_parameters();
  append_whole(unreduced, type, view.leaves);
  for (const ReducedParameter& parameter : unreduced) view.stepped.insert(parameter.name);
}

/// Adds this rank's shares of fully sharded parameters: its leaves, and those that nothing steps.
void TrainingCheckpoint::add_shares(TrainingView& view) const {
  const auto add = [&](const std::string& name, const at::Tensor& parameter,
                       const at::Tensor& elements, std::int64_t begin) {
    if (is_fully_sharded(parameter))
      view.model.shares.push_back({name, parameter, elements, begin});
  };
  for (const TrainingView::Leaf& leaf : view.leaves) {
    if (!leaf.is_whole()) add(leaf.name, leaf.parameter, leaf.elements, leaf.begin);
  }
  for (const auto& [name, tensor] : context_.frozen.parameters()) view.shared.insert(name);
  for (const auto& [parameter, share] : context_.frozen.shares()) {
    const auto& [begin, elements] = share;
    add(parameter.name, parameter.tensor, elements, begin);
  }
}

/// Does not read buckets that are in flight.
TrainingView::Residuals TrainingCheckpoint::residuals() const {
  const ops::NodePlaces nodes = context_.set.lane()->node_places();
  const bool is_of_node =
      context_.compression.has_residual_per_node() && !context_.hook.error_feedback;
  TrainingView::Residuals residuals{.own = {},
                                    .copy = is_of_node ? nodes.node() : context_.set.rank(),
                                    .copies = is_of_node ? nodes.node_count() : context_.set.size(),
                                    .are_averaged = context_.options.op == ReduceOp::Average};
  for (const auto& reducer : batches_) {
    Residuals::ByParameter by_parameter = reducer->residuals().before_step();
    for (const ReducedParameter& parameter : reducer->parameters()) {
      const auto found = by_parameter.find(parameter.tensor.unsafeGetTensorImpl());
      if (found == by_parameter.end()) continue;
      const Residuals::ParameterResidual& own = found->second;
      residuals.own.push_back({parameter.name, parameter.tensor, own.before, own.begin});
    }
  }
  return residuals;
}

/// The names of parameters in the order of buckets, and of those that are reduced as sparse ones.
nlohmann::json TrainingCheckpoint::layout() const {
  nlohmann::json order = nlohmann::json::array();
  nlohmann::json sparse = nlohmann::json::array();
  for (const auto& reducer : batches_) {
    for (const std::size_t i : reducer->order()) {
      const std::string& name = reducer->parameters()[i].name;
      order.push_back(name);
      if (reducer->is_sparse(i)) sparse.push_back(name);
    }
  }
  return {{"order", order}, {"sparse", sparse}};
}

void TrainingCheckpoint::follow_layout(const TrainingDetails& details) {
  if (details.order.empty()) return;
  for (const auto& reducer : batches_) {
    const auto& parameters = reducer->parameters();
    std::unordered_map<std::string, std::size_t> places;
    for (std::size_t i = 0; i < parameters.size(); ++i) places[parameters[i].name] = i;
    std::vector<std::size_t> order;
    for (const std::string& name : details.order) {
      if (const auto place = places.find(name); place != places.end()) {
        order.push_back(place->second);
      }
    }
    std::vector<bool> sparse(parameters.size());
    for (const std::string& name : details.sparse) {
      const auto place = places.find(name);
      if (place != places.end() && !context_.is_sharded()) sparse[place->second] = true;
    }
    reducer->follow_order(order, sparse);
  }
}

std::string TrainingCheckpoint::next_name(const char* operation) {
  return context_.prefix + "." + operation + "." + std::to_string(operations_++);
}

void TrainingCheckpoint::save(const std::filesystem::path& folder, const SaveOptions& options) {
  nlohmann::json details{{"steps", context_.steps},
                         {"optimizer", context_.wrapped.class_name()},
                         {"groups", OptionSync::describe(context_.groups)},
                         {"layout", layout()},
                         {"extras", options.extras}};
  if (options.scaler != nullptr) details["scaler"] = describe(*options.scaler);
  if (context_.step.loss_reference) details["loss_reference"] = *context_.step.loss_reference;
  if (context_.compression.has_error_feedback || context_.hook.error_feedback) {
    details["residual_ranks"] = context_.set.size();
  }
  save_training(
      view(), folder, std::move(details), options.keep_last,
      [&](const CheckpointIndex& index, const std::filesystem::path& path) {
        require_fit({index, path, parse_training_details(index.details)}, {});
      },
      next_name("save"));
}

Loaded TrainingCheckpoint::load(const std::filesystem::path& path, const LoadOptions& options) {
  const std::string name = next_name("load");
  const std::string kind = kind_of(path);
  const Readers readers({.name = name, .process_set = &context_.set});
  const auto text = [](bool value) { return std::string(value ? "true" : "false"); };
  agree(context_.set, name + ".agreement", "DistributedOptimizer: load('" + path.string() + "')",
        {{"the path", kind},
         {"strict", text(options.strict)},
         {"optimizer_state", text(options.optimizer_state)},
         {"random_state", text(options.random_state)},
         {"scaler", options.scaler != nullptr ? "given" : "not given"}},
        {});
  const Loaded loaded = is_of_a_model(kind)
                            ? load_model_file(view().model, path, options.strict, readers)
                            : load_checkpoint(path, options, readers);
  if (readers.rank() == 0) log_partial(loaded);
  return loaded;
}

Loaded TrainingCheckpoint::load_checkpoint(const std::filesystem::path& path,
                                           const LoadOptions& options, const Readers& readers) {
  const Checkpoint checkpoint(path, readers);
  SavedTraining saved{checkpoint.index(), checkpoint.path(), {}};
  const TrainingDetails& details = saved.details;
  Loaded loaded;
  readers.run(".fits", "loading the checkpoint " + checkpoint.path().string(), [&] {
    saved.details = parse_training_details(checkpoint.details());
    require_fit(saved, options);
    require_same_scaler(details, options);
    loaded = match_model(view().model, saved, options.strict);
    if (!options.optimizer_state) return;
    for (std::string& name : unused_state(view(), saved, options.strict)) {
      loaded.unused.push_back(std::move(name));
    }
  });
  if (options.optimizer_state) follow_layout(details);
  load_training(view(), saved, checkpoint, options, readers);
  if (options.optimizer_state) {
    OptionSync::apply(details.groups, context_.groups);
    option_sync_.merge(context_.groups, context_.wrapped.groups());
    context_.steps = details.steps;
    context_.step.loss_reference = details.loss_reference;
  }
  if (options.scaler != nullptr && details.scaler) options.scaler->set_state(*details.scaler);
  return loaded;
}

void TrainingCheckpoint::require_fit(const SavedTraining& saved, const LoadOptions& options) const {
  train::require_fit(view(), saved, options);
  const nlohmann::json own_options = OptionSync::describe(context_.groups);
  if (options.optimizer_state && !have_same_options(saved.details.groups, own_options)) {
    throw InvalidArgument(
        "it has optimizer options " + nlohmann::json(saved.details.groups).dump() +
        " of its parameter groups, which are not those of the program: " + own_options.dump() +
        ". Load with optimizer_state = false to keep the program's.");
  }
}

void TrainingCheckpoint::save_full_state(const std::filesystem::path& file, int root) {
  const std::vector<int>& ranks = context_.set.ranks();
  const auto place = std::find(ranks.begin(), ranks.end(), root);
  if (place == ranks.end()) {
    throw InvalidArgument("DistributedOptimizer: save_full_state() on rank " +
                          std::to_string(root) + ", which is not in process set " +
                          context_.set.name());
  }
  train::save_full_state(view(), file, static_cast<int>(place - ranks.begin()),
                         next_name("export"));
}

}  // namespace kolo::train

#include "train/checkpoint/training_checkpoint.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>

#include "base/log.hpp"
#include "checkpoint/untrusted_text.hpp"
#include "kolo/agreement.hpp"
#include "kolo/error.hpp"
#include "kolo/torch/grad_scaler.hpp"
#include "runtime/engine/engine.hpp"
#include "train/checkpoint/load_model.hpp"
#include "train/checkpoint/model_file.hpp"
#include "train/checkpoint/save_full_state.hpp"
#include "train/checkpoint/saved_options.hpp"
#include "train/tensors/parameter_storage.hpp"
#include "train/tensors/tensor_collectives.hpp"
#include "train/tensors/tensor_memory.hpp"

namespace kolo::train {

CurrentNames::CurrentNames(const NamedModel& model, const TrainingContext::Groups& groups) {
  for (const auto& [name, tensor] : model.parameters)
    names_.emplace(tensor.unsafeGetTensorImpl(), name);
  std::size_t number = 0;
  for (const auto& group : groups) {
    for (const at::Tensor& tensor : group.params()) {
      std::string name = "parameter " + std::to_string(number++);
      const auto [place, is_new] = names_.emplace(tensor.unsafeGetTensorImpl(), std::move(name));
      if (!is_new || !problem_.empty()) continue;
      problem_ = place->second + " of the groups, " + c10::toString(tensor.scalar_type()) + " " +
                 c10::str(tensor.sizes()) +
                 ", has no name: it is in no module that the optimizer was wrapped with. Register "
                 "it there; or wrap the optimizer with all modules, as {{\"actor\", *actor}, "
                 "{\"critic\", *critic}}, or with the names of all parameters.";
    }
  }
}

std::vector<std::vector<std::string>> CurrentNames::of(
    const TrainingContext::Groups& groups) const {
  std::vector<std::vector<std::string>> names;
  for (const auto& group : groups) {
    names.emplace_back();
    for (const at::Tensor& tensor : group.params()) names.back().push_back(of(tensor));
  }
  return names;
}

namespace {

// The view of the training.

void append_whole(const std::vector<ReducedParameter>& parameters, const UpdateType& type,
                  const CurrentNames& names, TrainingView& view) {
  for (const ReducedParameter& parameter : parameters) {
    view.leaves.push_back({names.of(parameter), parameter.tensor, parameter.tensor,
                           parameter.tensor, 0,
                           c10::typeMetaToScalarType(type.of(parameter.tensor.options()).dtype()),
                           view.wrapped.master(parameter.tensor)});
  }
}

void append_leaves(const GradientReducer& reducer, const UpdateType& type,
                   const CurrentNames& names, TrainingView& view) {
  const auto& parameters = reducer.parameters();
  if (reducer.shards() == nullptr) return append_whole(parameters, type, names, view);
  for (std::size_t i = 0; i < reducer.buckets().buckets().size(); ++i) {
    for (const ParameterShards::Leaf& leaf : reducer.shards()->leaves(i)) {
      const ReducedParameter& parameter = parameters[leaf.parameter];
      const bool has_master = leaf.values.scalar_type() != leaf.elements.scalar_type();
      view.leaves.push_back({names.of(parameter), parameter.tensor, leaf.elements, leaf.values,
                             leaf.begin, leaf.values.scalar_type(),
                             has_master ? leaf.values.detach() : at::Tensor()});
    }
  }
}

// Saving.

/// The slices of tensors that this rank writes. Tensors that every rank has are split into equal
/// shares.
class Slices {
 public:
  explicit Slices(const ProcessSet& set) : set_(set) {}

  /// Adds elements that only this rank has, from element `begin` of a tensor of `shape` on.
  void add(std::string name, const at::Tensor& elements, std::vector<std::int64_t> shape,
           std::int64_t begin) {
    const at::Tensor kept = keep(name, elements);
    add_slice(std::move(name), kept, std::move(shape), begin, 0, elements.numel());
  }
  void add(std::string name, const at::Tensor& tensor) {
    add(std::move(name), tensor, tensor.sizes().vec(), 0);
  }
  /// Adds a tensor that every rank has. All ranks add the same tensors in the same order.
  void share(std::string name, const at::Tensor& tensor) {
    require_supported(name, tensor);
    shared_.push_back({std::move(name), tensor});
    shared_bytes_ += tensor.nbytes();
  }

  std::vector<checkpoints::TensorSlice> finish() {
    const auto size = static_cast<std::size_t>(set_.size());
    const auto rank = static_cast<std::size_t>(set_.rank());
    std::size_t offset = 0;
    for (const auto& [name, tensor] : shared_) {
      const auto count = static_cast<std::size_t>(tensor.numel());
      const auto element = static_cast<std::size_t>(tensor.element_size());
      const auto first_from = [&](std::size_t place) {
        const std::size_t bytes = place > offset ? place - offset : 0;
        return std::min((bytes + element - 1) / element, count);
      };
      const std::size_t begin = first_from(shared_bytes_ * rank / size);
      const std::size_t end = first_from(shared_bytes_ * (rank + 1) / size);
      const auto first = static_cast<std::int64_t>(begin);
      const auto own = static_cast<std::int64_t>(end - begin);
      // Another optimizer gathers it: all ranks must take part, even those that write none of it.
      const bool is_gathered = is_gathered_on_use(tensor);
      const at::Tensor kept = keep(
          name, is_gathered ? tensor.detach().reshape(-1).narrow(0, first, own).clone() : tensor);
      if (own > 0 || (count == 0 && rank == 0)) {
        add_slice(name, kept, tensor.sizes().vec(), first, is_gathered ? 0 : first, own);
      }
      offset += tensor.nbytes();
    }
    return std::move(slices_);
  }

 private:
  static void require_supported(const std::string& name, const at::Tensor& tensor) {
    if (std::string problem = problem_with(tensor); !problem.empty()) {
      throw InvalidArgument("'" + name + "': " + problem);
    }
  }

  at::Tensor keep(const std::string& name, const at::Tensor& tensor) {
    require_supported(name, tensor);
    return kept_.emplace_back(contiguous(tensor));
  }

  /// Adds `count` elements of `kept`, from `skipped` on.
  void add_slice(std::string name, const at::Tensor& kept, std::vector<std::int64_t> shape,
                 std::int64_t begin, std::int64_t skipped, std::int64_t count) {
    const TensorView view = view_of(kept, name);
    const std::size_t offset = static_cast<std::size_t>(skipped) * size_of(view.dtype);
    slices_.push_back({std::move(name), view.dtype, std::move(shape), begin, count});
    checkpoints::TensorSlice& slice = slices_.back();
    if (kept.is_cpu()) {
      slice.data = static_cast<const std::byte*>(view.data) + offset;
    } else {
      slice.copy_to = [kept, offset](std::size_t more, std::span<std::byte> place) {
        copy_bytes(kept, offset + more, place);
      };
    }
  }

  const ProcessSet& set_;
  std::vector<checkpoints::TensorSlice> slices_;
  std::vector<std::pair<std::string, at::Tensor>> shared_;
  std::size_t shared_bytes_ = 0;
  std::vector<at::Tensor> kept_;
};

void slice_parameters(const TrainingView& view, Slices& slices) {
  for (const auto& [name, tensor] : view.model.parameters) {
    // No rank has a shard of a parameter without elements.
    if (!view.model.gathers(name, tensor) || tensor.numel() == 0)
      slices.share(model_key(name), tensor);
  }
  for (const ModelView::Share& share : view.model.shares) {
    if (!view.model.gathers(share.name, share.parameter) || !view.is_first_replica) continue;
    slices.add(model_key(share.name), share.elements, share.parameter.sizes().vec(), share.begin);
  }
}

void slice_buffers(const TrainingView& view, Slices& slices) {
  if (view.set.rank() > 0) return;
  for (const auto& [name, tensor] : view.model.buffers) slices.add(model_key(name), tensor);
}

void slice_masters(const TrainingView& view, Slices& slices) {
  for (const TrainingView::Leaf& leaf : view.leaves) {
    if (!leaf.master.defined()) continue;
    if (leaf.is_whole()) {
      slices.share(master_key(leaf.name), leaf.master);
    } else if (view.is_first_replica) {
      slices.add(master_key(leaf.name), leaf.master, leaf.parameter.sizes().vec(), leaf.begin);
    }
  }
}

void slice_state(const TrainingView& view, const LeafStates& states, Slices& slices) {
  for (std::size_t i = 0; i < view.leaves.size(); ++i) {
    const TrainingView::Leaf& leaf = view.leaves[i];
    for (const StateField& field : states.fields(i)) {
      if (!field.value.isTensor()) continue;
      const at::Tensor tensor = field.value.toTensor();
      const std::string key = state_key(field.name, leaf.name);
      const LeafStates::Tensor& all = states.tensors().at({leaf.name, field.name});
      if (leaf.is_whole() && states.is_everywhere(all)) {
        slices.share(key, tensor);
      } else if (leaf.is_whole()) {
        if (states.is_last_with(all)) slices.add(key, tensor);
      } else if (!view.is_first_replica) {
        continue;
      } else if (all.is_elementwise) {
        slices.add(key, tensor, leaf.parameter.sizes().vec(), leaf.begin);
      } else if (leaf.begin == 0) {
        slices.add(key, tensor);
      }
    }
  }
}

void slice_residuals(const TrainingView& view, Slices& slices) {
  for (const TrainingView::Residual& residual : view.residuals.own) {
    slices.add(residual_key(view.residuals.copy, residual.name), residual.elements,
               residual.parameter.sizes().vec(), residual.begin);
  }
}

void slice_hook_state(const TrainingView& view, Slices& slices) {
  if (!view.hook.state || view.set.rank() > 0) return;
  for (const auto& [name, tensor] : view.hook.state()) {
    slices.add(std::string(kHookPrefix) + name, tensor);
  }
}

// Loading.

void require_same_scaler(const TrainingDetails& details, const LoadOptions& options) {
  if (!options.strict || details.scaler.has_value() == (options.scaler != nullptr)) return;
  throw InvalidArgument(std::string("it has ") + (options.scaler == nullptr ? "a" : "no") +
                        " GradScaler's state, unlike the program. Give or leave out "
                        "LoadOptions::scaler, or load with strict = false.");
}

/// State there of parameters that the program's optimizer does not step: names of tensors. Throws
/// InvalidArgument for any, if `strict`.
std::vector<std::string> unused_state(const TrainingView& view, const SavedTraining& saved,
                                      bool strict) {
  std::vector<std::string> unused;
  std::unordered_set<std::string> stepped;
  for (const std::string& name : view.stepped_names) stepped.insert(saved.name_of(name));
  for (const auto& [name, state] : saved.details.state) {
    if (stepped.contains(name)) continue;
    if (strict) {
      throw InvalidArgument("the checkpoint " + saved.path.string() +
                            " has optimizer state of parameter '" + name +
                            "', which is in no parameter group of the program's optimizer. Add it "
                            "to one, where it may be frozen; or load with strict = false to leave "
                            "its state out.");
    }
    for (const auto& [field, is_elementwise] : state.tensors) {
      unused.push_back(state_key(field, name));
    }
  }
  return unused;
}

void require_masters(const TrainingView& view, const SavedTraining& saved) {
  for (const TrainingView::Leaf& leaf : view.leaves) {
    const std::string key = master_key(saved.name_of(leaf.name));
    if (leaf.stepped_dtype == leaf.parameter.scalar_type() || !saved.has(key)) continue;
    saved.require(key, *dtype_of(leaf.stepped_dtype), leaf.parameter.sizes().vec());
  }
}

void require_random_states(const TrainingView& view, const SavedTraining& saved) {
  for (const RandomSource& source : random_sources(view)) {
    if (saved.has(source.key)) {
      saved.require(source.key, DType::UInt8, source.state().sizes().vec());
    }
  }
}

/// A frozen parameter gets one, until it is sharded; or loses that of another checkpoint.
void add_masters(TrainingView& view, const SavedTraining& saved, std::vector<Read>& reads) {
  for (TrainingView::Leaf& leaf : view.leaves) {
    const std::string place = master_key(saved.name_of(leaf.name));
    const bool is_saved = leaf.stepped_dtype != leaf.parameter.scalar_type() && saved.has(place);
    if (leaf.is_whole()) {
      leaf.master =
          is_saved
              ? at::empty(leaf.parameter.sizes(),
                          leaf.parameter.options().dtype(leaf.stepped_dtype).requires_grad(false))
              : at::Tensor();
    }
    if (is_saved) reads.push_back({place, leaf.begin, leaf.master});
  }
}

/// Initializes master copies that the checkpoint lacks from their parameters, which have been read,
/// and keeps those of frozen parameters.
void finish_masters(const TrainingView& view, const SavedTraining& saved) {
  const at::NoGradGuard no_grad;
  for (const TrainingView::Leaf& leaf : view.leaves) {
    if (leaf.is_whole()) {
      view.wrapped.set_master(leaf.parameter, leaf.master);
    } else if (leaf.master.defined() && !saved.has(master_key(saved.name_of(leaf.name)))) {
      leaf.master.copy_(leaf.elements);
    }
  }
}

/// The state of a leaf, with uninitialized tensors.
struct LeafState {
  const TrainingView::Leaf* leaf;
  std::vector<StateField> fields;
};

std::vector<LeafState> plan_state(const TrainingView& view, const SavedTraining& saved,
                                  std::vector<Read>& reads) {
  std::vector<LeafState> states;
  for (const TrainingView::Leaf& leaf : view.leaves) {
    const std::string& name = saved.name_of(leaf.name);
    const auto found = saved.details.state.find(name);
    if (found == saved.details.state.end()) continue;
    states.push_back({&leaf, fields_in(saved, leaf)});
    for (const StateField& field : states.back().fields) {
      if (!field.value.isTensor()) continue;
      const bool is_elementwise = found->second.tensors.at(field.name);
      reads.push_back(
          {state_key(field.name, name), is_elementwise ? leaf.begin : 0, field.value.toTensor()});
    }
  }
  return states;
}

void set_state(const TrainingView& view, std::vector<LeafState>& states) {
  for (auto& [leaf, fields] : states) {
    for (StateField& field : fields) {
      if (leaf->is_whole() || !leaf->master.defined() || !is_elementwise(field, leaf->values))
        continue;
      // As at wrapping: state in the parameter's dtype becomes that of its master copy.
      const at::Tensor tensor = field.value.toTensor();
      if (tensor.scalar_type() != leaf->parameter.scalar_type()) continue;
      field.value = tensor.to(leaf->values.scalar_type());
    }
    view.wrapped.set_state(leaf->values, fields);
  }
}

/// Generators with their saved states.
using RandomStates = std::vector<std::pair<RandomSource, at::Tensor>>;

RandomStates read_random_states(const TrainingView& view,
                                const checkpoints::Checkpoint& checkpoint) {
  RandomStates states;
  for (const RandomSource& source : random_sources(view)) {
    if (!checkpoint.tensors().contains(source.key)) continue;
    states.emplace_back(source, at::empty_like(source.state()));
    read_into(checkpoint, {source.key, 0, states.back().second});
    source.require_valid(states.back().second);
  }
  return states;
}

BucketHook::State read_hook_state(const TrainingView& view,
                                  const checkpoints::Checkpoint& checkpoint) {
  BucketHook::State state;
  if (!view.hook.set_state) return state;
  for (const auto& [key, saved] : checkpoint.tensors()) {
    if (!key.starts_with(kHookPrefix)) continue;
    if (saved.dtype != DType::Float32 && saved.dtype != DType::Float64) continue;
    const at::Tensor values = at::empty(saved.shape, scalar_type_of(saved.dtype));
    read_into(checkpoint, {key, 0, values});
    state[key.substr(kHookPrefix.size())] = values;
  }
  return state;
}

/// Verifies checksums, then loads the tensors of a checkpoint that fits: parameters, buffers,
/// optimizer state, residuals and generators.
void load_tensors(TrainingView view, const SavedTraining& saved,
                  const checkpoints::Checkpoint& checkpoint, const LoadOptions& options,
                  const checkpoints::Ranks& ranks) {
  std::vector<Read> reads;
  std::vector<LeafState> states;
  RandomStates random_states;
  std::vector<SavedResidual> residuals;
  BucketHook::State hook_state;
  const std::string what = "loading the checkpoint " + checkpoint.path().string();
  ranks.run(".verify", what, [&] {
    reads = reads_of(view.model, saved, options.strict);
    add_masters(view, saved, reads);
    if (options.optimizer_state) {
      states = plan_state(view, saved, reads);
      residuals = find_residuals(view, saved);
      verify_residuals(residuals, checkpoint);
      hook_state = read_hook_state(view, checkpoint);
    }
    for (const Read& read : reads) verify(checkpoint, read);
    if (options.random_state) random_states = read_random_states(view, checkpoint);
  });
  if (options.optimizer_state) {
    // Before the new state is read, so that old and new state are never in memory together.
    for (const TrainingView::Leaf& leaf : view.leaves) view.wrapped.erase_state(leaf.values);
  }
  ranks.run(".read", what, [&] {
    for (const Read& read : reads) read_into(checkpoint, read);
    finish_masters(view, saved);
    load_residuals(view, residuals, saved, checkpoint);
    if (options.optimizer_state && view.hook.set_state) view.hook.set_state(hook_state);
    for (auto& [source, state] : random_states) source.restore(state);
  });
  if (options.optimizer_state) set_state(view, states);
}

}  // namespace

TrainingCheckpoint::TrainingCheckpoint(TrainingContext& context, GradientReducers& reducers,
                                       OptionSync& option_sync, ModelSource model)
    : context_(context), reducers_(reducers), option_sync_(option_sync), model_(std::move(model)) {}

TrainingView TrainingCheckpoint::view() const {
  const NamedModel now = model_();
  const CurrentNames names(now, context_.groups);
  const ShardSets& sets = context_.sets;
  TrainingView view{.set = context_.set,
                    .sharded = *sets.sharded,
                    .is_first_replica = sets.replicas == nullptr || sets.replicas->rank() == 0,
                    .model = {.parameters = {},
                              .buffers = now.buffers,
                              .aliases = {},
                              .shares = {},
                              .sets_shared_copies = sets.sharded->rank() == 0},
                    .mastered = {},
                    .leaves = {},
                    .stepped_names = {},
                    .groups = names.of(context_.groups),
                    .residuals = residuals(names),
                    .hook = context_.hook,
                    .wrapped = context_.wrapped};
  ModelView::Named all = now.parameters;
  for (const auto& group : context_.groups) {  // those that are not in the model
    for (const at::Tensor& tensor : group.params()) all.emplace_back(names.of(tensor), tensor);
  }
  view.model.add_parameters(all);
  add_leaves(names, view);
  add_shares(names, view);
  return view;
}

/// Adds the leaves that this rank steps.
void TrainingCheckpoint::add_leaves(const CurrentNames& names, TrainingView& view) const {
  const UpdateType type{context_.options.master_weights, context_.options.offload};
  for (const auto& reducer : reducers_) {
    append_leaves(*reducer, type, names, view);
    for (const ReducedParameter& parameter : reducer->parameters()) {
      view.stepped_names.insert(names.of(parameter));
      if (reducer->shards() == nullptr) continue;
      view.model.sharded.insert(names.of(parameter));
      if (!type.has_master(parameter.tensor)) continue;
      view.mastered.emplace_back(names.of(parameter), parameter.tensor);
    }
  }
  // A parameter may be frozen now, and have state from steps before.
  const std::vector<ReducedParameter> unreduced = reducers_.unreduced_parameters();
  append_whole(unreduced, type, names, view);
  for (const ReducedParameter& parameter : unreduced)
    view.stepped_names.insert(names.of(parameter));
}

/// Adds this rank's shares of fully sharded parameters: its leaves, and those that nothing steps.
void TrainingCheckpoint::add_shares(const CurrentNames& names, TrainingView& view) const {
  const auto add = [&](const std::string& name, const at::Tensor& parameter,
                       const at::Tensor& elements, std::int64_t begin) {
    if (is_fully_sharded(parameter))
      view.model.shares.push_back({name, parameter, elements, begin});
  };
  for (const TrainingView::Leaf& leaf : view.leaves) {
    if (!leaf.is_whole()) add(leaf.name, leaf.parameter, leaf.elements, leaf.begin);
  }
  for (const auto& [name, tensor] : context_.frozen.parameters()) {
    view.model.sharded.insert(names.of(tensor, name));
  }
  for (const auto& [parameter, share] : context_.frozen.shares()) {
    const auto& [begin, elements] = share;
    add(names.of(parameter), parameter.tensor, elements, begin);
  }
}

/// Does not read buckets that are in flight.
TrainingView::Residuals TrainingCheckpoint::residuals(const CurrentNames& names) const {
  const ops::NodePlaces nodes = context_.set.engine()->node_places();
  const bool is_of_node =
      context_.compression.has_residual_per_node() && !context_.hook.error_feedback;
  TrainingView::Residuals residuals{.own = {},
                                    .copy = is_of_node ? nodes.node() : context_.set.rank(),
                                    .copies = is_of_node ? nodes.node_count() : context_.set.size(),
                                    .are_averaged = context_.options.op == ReduceOp::Average};
  for (const auto& reducer : reducers_) {
    Residuals::ByParameter by_parameter = reducer->layouts().residuals().before_step();
    for (const ReducedParameter& parameter : reducer->parameters()) {
      const auto found = by_parameter.find(parameter.tensor.unsafeGetTensorImpl());
      if (found == by_parameter.end()) continue;
      const Residuals::ParameterResidual& own = found->second;
      residuals.own.push_back({names.of(parameter), parameter.tensor, own.before, own.begin});
    }
  }
  return residuals;
}

/// The names of parameters in the order of buckets, and of those that are reduced as sparse ones.
nlohmann::json TrainingCheckpoint::layout(const CurrentNames& names) const {
  nlohmann::json order = nlohmann::json::array();
  nlohmann::json sparse = nlohmann::json::array();
  for (const auto& reducer : reducers_) {
    for (const std::size_t i : reducer->layouts().order()) {
      const std::string name = names.of(reducer->parameters()[i]);
      order.push_back(name);
      if (reducer->layouts().is_sparse(i)) sparse.push_back(name);
    }
  }
  return {{"order", order}, {"sparse", sparse}};
}

void TrainingCheckpoint::follow_layout(const TrainingDetails& details) {
  if (details.order.empty()) return;
  const CurrentNames names(model_(), context_.groups);
  for (const auto& reducer : reducers_) {
    const auto& parameters = reducer->parameters();
    std::unordered_map<std::string, std::size_t> places;
    for (std::size_t i = 0; i < parameters.size(); ++i) places[names.of(parameters[i])] = i;
    std::vector<std::size_t> order;
    for (const std::string& name : details.order) {
      if (const auto place = places.find(name); place != places.end()) {
        order.push_back(place->second);
      }
    }
    std::vector<bool> sparse(parameters.size());
    for (const std::string& name : details.sparse) {
      if (const auto place = places.find(name); place != places.end()) sparse[place->second] = true;
    }
    reducer->layouts().follow(order, sparse);
  }
}

std::string TrainingCheckpoint::next_name(const char* operation) {
  return context_.prefix + "." + operation + "." + std::to_string(operations_++);
}

namespace {

/// What this rank gives save(), which all must give alike.
std::vector<NamedValue> facts_of(const SaveOptions& options) {
  std::vector<NamedValue> facts{
      {"GradScaler",
       options.scaler == nullptr ? "none" : train::describe(options.scaler->state()).dump()},
      {"in_background", options.in_background ? "true" : "false"},
      {"the number of extras", std::to_string(options.extras.size())}};
  for (const auto& [name, value] : options.extras) {
    facts.push_back(
        {"extra '" + checkpoints::printable(name) + "'", checkpoints::printable(value)});
  }
  return facts;
}

}  // namespace

/// Before all ranks save: throws on all if this rank's groups have a parameter without a name, or
/// if ranks disagree on names, which parts of tensors are written under, or on `facts`.
void TrainingCheckpoint::require_saveable(const std::string& call, const std::string& name,
                                          std::vector<NamedValue> facts) const {
  const NamedModel now = model_();
  facts.push_back({"the number of parameters", std::to_string(now.parameters.size())});
  for (const auto& [parameter, tensor] : now.parameters)
    facts.push_back({"a parameter", parameter});
  check_agreement("DistributedOptimizer: " + call, facts,
                  CurrentNames(now, context_.groups).problem(),
                  {.name = name + ".agreement", .process_set = &context_.set});
}

Saved TrainingCheckpoint::save(const std::filesystem::path& folder, const SaveOptions& options) {
  const std::string name = next_name("save");
  require_saveable("save('" + folder.string() + "')", name, facts_of(options));
  const TrainingView training = view();
  const CurrentNames names(model_(), context_.groups);
  nlohmann::json details{{"steps", context_.steps},
                         {"optimizer", context_.wrapped.class_name()},
                         {"groups", OptionSync::describe(context_.groups)},
                         {"members", training.groups},
                         {"layout", layout(names)},
                         {"extras", options.extras}};
  if (options.scaler != nullptr) details["scaler"] = describe(options.scaler->state());
  if (context_.step.loss_reference) details["loss_reference"] = *context_.step.loss_reference;
  if (context_.compression.has_error_feedback || context_.hook.error_feedback) {
    details["residual_ranks"] = context_.set.size();
  }
  const checkpoints::Ranks ranks({.name = name, .process_set = &context_.set});
  Slices slices(context_.set);
  const LeafStates states(training, ranks, "DistributedOptimizer::save", [&] {
    slice_parameters(training, slices);
    slice_buffers(training, slices);
    slice_masters(training, slices);
    slice_residuals(training, slices);
    slice_hook_state(training, slices);
    for (const RandomSource& source : random_sources(training)) {
      slices.add(source.key, source.state());
    }
  });
  slice_state(training, states, slices);
  details["state"] = states.describe();
  details["aliases"] = training.model.aliases;
  Saved saved;
  for (const auto& [parameter, tensor] : training.model.parameters)
    saved.saved.push_back(parameter);
  for (const auto& [buffer, tensor] : training.model.buffers) saved.saved.push_back(buffer);
  std::vector<checkpoints::TensorSlice> own = slices.finish();
  if (options.in_background) {
    ranks.run(".copy", "copying what save() writes in the background", [&] { copy(own); });
  }
  checkpoints::NewCheckpoint checkpoint(
      folder, own, details, options.keep_last, ranks,
      [&](const checkpoints::CheckpointIndex& index, const std::filesystem::path& path) {
        static_cast<void>(
            require_fit(training, {index, path, parse_training_details(index.details)}, {}));
      });
  if (!options.in_background) {
    saved.path = checkpoint.write();
    return saved;
  }
  written_ = saved;
  writing_ = std::async(std::launch::async, [checkpoint = std::move(checkpoint)]() mutable {
    return checkpoint.write();
  });
  return saved;
}

/// Copies the slices' elements to copy_, and lets them refer to it.
void TrainingCheckpoint::copy(std::vector<checkpoints::TensorSlice>& slices) {
  const auto bytes_of = [](const checkpoints::TensorSlice& slice) {
    return static_cast<std::size_t>(slice.count) * size_of(slice.dtype);
  };
  std::size_t bytes = 0;
  for (const checkpoints::TensorSlice& slice : slices) bytes += bytes_of(slice);
  if (bytes > copy_.capacity()) std::vector<std::byte>().swap(copy_);  // not both at a time
  copy_.reserve(bytes);
  copy_.resize(bytes);
  std::byte* place = copy_.data();
  for (checkpoints::TensorSlice& slice : slices) {
    if (slice.copy_to) {
      std::exchange(slice.copy_to, nullptr)(0, {place, bytes_of(slice)});
    } else if (slice.count > 0) {
      std::memcpy(place, slice.data, bytes_of(slice));
    }
    slice.data = place;
    place += bytes_of(slice);
  }
}

std::optional<Saved> TrainingCheckpoint::wait() {
  if (!writing_.valid()) return {};
  Saved saved = std::move(written_);
  saved.path = writing_.get();
  return saved;
}

void TrainingCheckpoint::finish() noexcept {
  try {
    static_cast<void>(wait());
  } catch (const std::exception& error) {
    KOLO_LOG(Warn) << "DistributedOptimizer: a save in the background failed: " << error.what();
  }
}

Loaded TrainingCheckpoint::load(const std::filesystem::path& path, const LoadOptions& options) {
  const std::string name = next_name("load");
  const std::string kind = kind_of(path);
  const checkpoints::Ranks ranks({.name = name, .process_set = &context_.set});
  const auto text = [](bool value) { return std::string(value ? "true" : "false"); };
  check_agreement("DistributedOptimizer: load('" + path.string() + "')",
                  {{"the path", kind},
                   {"strict", text(options.strict)},
                   {"optimizer_state", text(options.optimizer_state)},
                   {"random_state", text(options.random_state)},
                   {"scaler", options.scaler != nullptr ? "given" : "not given"}},
                  {}, {.name = name + ".agreement", .process_set = &context_.set});
  const Loaded loaded = is_of_a_model(kind)
                            ? load_model_file(view().model, path, options.strict, ranks)
                            : load_checkpoint(path, options, ranks);
  if (ranks.rank() == 0) log_partial(loaded);
  return loaded;
}

Loaded TrainingCheckpoint::load_checkpoint(const std::filesystem::path& path,
                                           const LoadOptions& options,
                                           const checkpoints::Ranks& ranks) {
  const checkpoints::Checkpoint checkpoint(path, ranks);
  SavedTraining saved{checkpoint.index(), checkpoint.path(), {}};
  const TrainingDetails& details = saved.details;
  Loaded loaded;
  ranks.run(".fits", "loading the checkpoint " + checkpoint.path().string(), [&] {
    saved.details = parse_training_details(checkpoint.details());
    loaded = require_fit(view(), saved, options);
    require_same_scaler(details, options);
  });
  if (options.optimizer_state) follow_layout(details);
  load_tensors(view(), saved, checkpoint, options, ranks);
  if (options.optimizer_state) {
    OptionSync::apply(options_from(saved, view(), own_options(), options.strict), context_.groups);
    option_sync_.merge(context_.groups, context_.wrapped.groups());
    context_.steps = details.steps;
    context_.step.loss_reference = details.loss_reference;
  }
  if (options.scaler != nullptr && details.scaler) options.scaler->set_state(*details.scaler);
  return loaded;
}

/// What a load of the checkpoint takes of it. Throws InvalidArgument, naming the first difference,
/// unless it has everything that the program needs, in its shape and dtype, and, with
/// options.strict, nothing else. Not collective.
Loaded TrainingCheckpoint::require_fit(const TrainingView& training, const SavedTraining& saved,
                                       const LoadOptions& options) const {
  Loaded loaded = match_model(training.model, saved, options.strict);
  require_masters(training, saved);
  if (options.random_state) require_random_states(training, saved);
  if (!options.optimizer_state) return loaded;
  for (std::string& name : unused_state(training, saved, options.strict)) {
    loaded.unused.push_back(std::move(name));
  }
  require_same_state(training, saved, options.strict);
  static_cast<void>(find_residuals(training, saved));
  const auto own = own_options();
  loaded.replaced = changes(own, options_from(saved, training, own, options.strict));
  return loaded;
}

std::vector<TrainingDetails::Options> TrainingCheckpoint::own_options() const {
  return OptionSync::describe(context_.groups);
}

void TrainingCheckpoint::save_full_state(const std::filesystem::path& file, int root) {
  const std::string name = next_name("export");
  require_saveable("save_full_state()", name, {{"root", std::to_string(root)}});
  train::save_full_state(view(), file, root, name);
}

}  // namespace kolo::train

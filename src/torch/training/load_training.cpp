#include "torch/training/load_training.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include "kolo/error.hpp"
#include "torch/checkpoint/on_all_ranks.hpp"
#include "torch/training/model_match.hpp"
#include "torch/training/random_sources.hpp"
#include "torch/training/saved_residuals.hpp"
#include "train/gradients/gradient_reducer.hpp"
#include "train/tensors/parameter_storage.hpp"
#include "train/tensors/tensor_memory.hpp"

namespace kolo {
namespace train {
namespace {

void for_each_tensor(const ModelView& model,
                     const std::function<void(const std::string&, const at::Tensor&)>& visit) {
  for (const auto& [name, tensor] : model.parameters) visit(name, tensor);
  for (const auto& [name, tensor] : model.buffers) visit(name, tensor);
}

/// A tensor of the checkpoint that a tensor of the model is loaded from.
struct Source {
  std::string key;
  DType dtype;
};

/// Nothing if it has none. Throws InvalidArgument for one that does not fit, if `strict`.
std::optional<Source> find_source(const SavedTraining& saved, const std::string& name,
                                  const at::Tensor& tensor, bool strict) {
  const std::string key = model_key(saved.name_of(name));
  if (strict) {
    const TensorView own = extent_of(tensor, name);
    saved.require(key, own.dtype, own.shape);
    return Source{key, own.dtype};
  }
  const auto found = saved.index.tensors.find(key);
  if (found == saved.index.tensors.end()) return {};
  if (!can_take(tensor, found->second.dtype, found->second.shape)) return {};
  return Source{key, found->second.dtype};
}

void require_masters(const TrainingView& view, const SavedTraining& saved) {
  for (const TrainingView::Leaf& leaf : view.leaves) {
    const std::string key = master_key(saved.name_of(leaf.name));
    if (leaf.stepped == leaf.parameter.scalar_type() || !saved.has(key)) continue;
    saved.require(key, *dtype_of(leaf.stepped), leaf.parameter.sizes().vec());
  }
}

void require_random_states(const TrainingView& view, const SavedTraining& saved) {
  for (const RandomSource& source : random_sources(view)) {
    if (saved.has(source.key)) {
      saved.require(source.key, DType::UInt8, source.state().sizes().vec());
    }
  }
}

/// A copy from the checkpoint to a tensor.
struct Read {
  std::string key;
  std::int64_t begin;
  at::Tensor target;
  DType dtype = view_of(target, key).dtype;  // in the checkpoint
};

/// Each rank reads its shards of fully sharded parameters.
std::vector<Read> reads_of(const ModelView& model, const SavedTraining& saved, bool strict) {
  std::vector<Read> reads;
  const auto add = [&](const std::string& name, const at::Tensor& tensor, std::int64_t begin,
                       const at::Tensor& target) {
    const auto source = find_source(saved, name, tensor, strict);
    if (source) reads.push_back({source->key, begin, target.detach(), source->dtype});
  };
  for_each_tensor(model, [&](const std::string& name, const at::Tensor& tensor) {
    if (!is_fully_sharded(tensor)) add(name, tensor, 0, tensor);
  });
  for (const auto& [name, parameter, elements, begin] : model.shares) {
    add(name, parameter, begin, elements);
  }
  return reads;
}

at::Tensor read_values(const Checkpoint& checkpoint, const Read& read) {
  at::Tensor values = at::empty(read.target.sizes(), scalar_type_of(read.dtype));
  checkpoint.read(read.key, read.dtype, read.begin,
                  {static_cast<std::byte*>(values.data_ptr()), values.nbytes()});
  return values;
}

void read_into(const Checkpoint& checkpoint, const Read& read) {
  const at::NoGradGuard no_grad;
  const at::Tensor& target = read.target;
  const bool is_plain = target.is_cpu() && target.is_contiguous() && !target.is_conj() &&
                        !target.is_neg() && dtype_of(target) == read.dtype;
  if (!is_plain) return copy_values(target, read_values(checkpoint, read));
  checkpoint.read(read.key, read.dtype, read.begin,
                  {static_cast<std::byte*>(target.data_ptr()), target.nbytes()});
}

void verify(const Checkpoint& checkpoint, const Read& read) {
  if (at::has_internal_overlap(read.target) == at::MemOverlap::Yes) {
    require_alike_where_shared(read.key, read.target, read_values(checkpoint, read));
  } else {
    checkpoint.verify(read.key, read.dtype, read.begin, read.target.numel());
  }
}

void add_masters(const TrainingView& view, const SavedTraining& saved, std::vector<Read>& reads) {
  for (const TrainingView::Leaf& leaf : view.leaves) {
    const std::string place = master_key(saved.name_of(leaf.name));
    if (!leaf.has_master() || !saved.has(place)) continue;
    reads.push_back({place, leaf.begin, leaf.values.detach()});
  }
}

/// Initializes master copies that the checkpoint lacks from their parameters, which have been read.
void copy_missing_masters(const TrainingView& view, const SavedTraining& saved) {
  const at::NoGradGuard no_grad;
  for (const TrainingView::Leaf& leaf : view.leaves) {
    if (!leaf.has_master()) continue;
    if (saved.has(master_key(saved.name_of(leaf.name)))) continue;
    leaf.values.detach().copy_(leaf.elements);
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
      if (!leaf->has_master() || !is_elementwise(field, leaf->values)) continue;
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

RandomStates read_random_states(const TrainingView& view, const Checkpoint& checkpoint) {
  RandomStates states;
  for (const RandomSource& source : random_sources(view)) {
    if (!checkpoint.tensors().contains(source.key)) continue;
    states.emplace_back(source, at::empty_like(source.state()));
    read_into(checkpoint, {source.key, 0, states.back().second});
    source.require_valid(states.back().second);
  }
  return states;
}

BucketHook::State read_hook_state(const TrainingView& view, const Checkpoint& checkpoint) {
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

/// Loads the parameters and buffers of a checkpoint.
Loaded load_model(const ModelView& model, const std::filesystem::path& path, bool strict,
                  const Readers& readers) {
  const Checkpoint checkpoint(path, readers);
  const std::string what = "loading the checkpoint " + checkpoint.path().string();
  Loaded loaded;
  std::vector<Read> reads;
  readers.run(".verify", what, [&] {
    const SavedTraining saved{checkpoint.index(), checkpoint.path(),
                              parse_training_details(checkpoint.details())};
    loaded = match_model(model, saved, strict);
    reads = reads_of(model, saved, strict);
    for (const Read& read : reads) verify(checkpoint, read);
  });
  readers.run(".read", what, [&] {
    for (const Read& read : reads) read_into(checkpoint, read);
  });
  return loaded;
}

}  // namespace

Loaded match_model(const ModelView& model, const SavedTraining& saved, bool strict) {
  Loaded found{.path = saved.path, .steps = saved.details.steps, .extras = saved.details.extras};
  std::unordered_set<std::string> known;
  for_each_tensor(model, [&](const std::string& name, const at::Tensor& tensor) {
    const auto source = find_source(saved, name, tensor, strict);
    (source ? found.loaded : found.left_out).push_back(name);
    if (!source) return;
    known.insert(source->key);
    if (source->dtype != dtype_of(tensor)) found.converted.push_back(name);
  });
  const std::string prefix = model_key("");
  for (const auto& [key, tensor] : saved.index.tensors) {
    if (!key.starts_with(prefix) || known.contains(key)) continue;
    found.unused.push_back(key.substr(prefix.size()));
    if (!strict) continue;
    throw InvalidArgument(
        "the checkpoint " + saved.path.string() + " has '" + key +
        "', which the program does not have. Load with strict = false to leave it out.");
  }
  require_some(found, "the checkpoint " + saved.path.string());
  return found;
}

std::vector<std::string> unused_state(const TrainingView& view, const SavedTraining& saved,
                                      bool strict) {
  std::vector<std::string> unused;
  std::unordered_set<std::string> stepped;
  for (const std::string& name : view.stepped) stepped.insert(saved.name_of(name));
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

void require_fit(const TrainingView& view, const SavedTraining& saved, const LoadOptions& options) {
  static_cast<void>(match_model(view.model, saved, options.strict));
  require_masters(view, saved);
  if (options.optimizer_state) {
    static_cast<void>(unused_state(view, saved, options.strict));
    require_same_state(view, saved);
    static_cast<void>(find_residuals(view, saved));
  }
  if (options.random_state) require_random_states(view, saved);
}

void load_training(const TrainingView& view, const SavedTraining& saved,
                   const Checkpoint& checkpoint, const LoadOptions& options,
                   const Readers& readers) {
  std::vector<Read> reads;
  std::vector<LeafState> states;
  RandomStates random_states;
  std::vector<SavedResidual> residuals;
  BucketHook::State hook_state;
  const std::string what = "loading the checkpoint " + checkpoint.path().string();
  readers.run(".verify", what, [&] {
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
  readers.run(".read", what, [&] {
    for (const Read& read : reads) read_into(checkpoint, read);
    copy_missing_masters(view, saved);
    load_residuals(view, residuals, saved, checkpoint);
    if (options.optimizer_state && view.hook.set_state) view.hook.set_state(hook_state);
    for (auto& [source, state] : random_states) source.restore(state);
  });
  if (options.optimizer_state) set_state(view, states);
}

}  // namespace train

Loaded load_parameters(torch::nn::Module& module, const std::filesystem::path& path,
                       const LoadParametersOptions& options) {
  using namespace train;
  ModelView model{
      .parameters = {}, .buffers = module.named_buffers().pairs(), .aliases = {}, .shares = {}};
  model.add_parameters(module.named_parameters().pairs());
  for (const auto& [name, tensor] : model.parameters) {
    if (!GradHooks::are_on(tensor) && !is_fully_sharded(tensor)) continue;
    throw InvalidArgument("load_parameters('" + path.string() +
                          "'): a DistributedOptimizer trains '" + name +
                          "'. Call its load() on all ranks, with optimizer_state = false.");
  }
  const Readers alone = Readers::this_process();
  const Loaded loaded = is_of_a_model(kind_of(path))
                            ? load_model_file(model, path, options.strict, alone)
                            : load_model(model, path, options.strict, alone);
  log_partial(loaded);
  return loaded;
}

}  // namespace kolo

#include "torch/training/load_training.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>

#include "kolo/error.hpp"
#include "torch/checkpoint/on_all_ranks.hpp"
#include "torch/tensors/parameter_storage.hpp"
#include "torch/tensors/tensor_memory.hpp"
#include "torch/training/random_sources.hpp"
#include "torch/training/saved_residuals.hpp"

namespace kolo::tensors {
namespace {

bool is_same(const Checkpoint& checkpoint, const std::string& key, const TensorView& view) {
  const auto found = checkpoint.tensors().find(key);
  return found != checkpoint.tensors().end() && found->second.dtype == view.dtype &&
         found->second.shape == view.shape;
}

void for_each_of_the_model(
    const TrainingView& view,
    const std::function<void(const std::string&, const at::Tensor&)>& visit) {
  for (const auto& [name, tensor] : view.parameters) visit(name, tensor);
  for (const auto& [name, tensor] : view.buffers) visit(name, tensor);
}

void require_same_model(const TrainingView& view, const SavedTraining& saved) {
  std::unordered_set<std::string> known;
  for_each_of_the_model(view, [&](const std::string& name, const at::Tensor& tensor) {
    const TensorView own = extent_of(tensor, name);
    const std::string place = model_key(saved.name_of(name));
    saved.checkpoint.require(place, own.dtype, own.shape);
    known.insert(place);
  });
  for (const auto& [key, tensor] : saved.checkpoint.tensors()) {
    if (!key.starts_with(model_key("")) || known.contains(key)) continue;
    throw InvalidArgument(
        "the checkpoint " + saved.checkpoint.path().string() + " has '" + key +
        "', which the program does not have. Load with strict = false to leave it out.");
  }
}

/// A copy from the checkpoint to a tensor.
struct Read {
  std::string key;
  std::int64_t begin;
  at::Tensor target;  // contiguous

  DType dtype() const { return view_of(target, key).dtype; }
};

/// Each rank reads its shards of fully sharded parameters.
std::vector<Read> reads_of_the_model(const TrainingView& view, const SavedTraining& saved,
                                     const LoadOptions& options) {
  std::vector<Read> reads;
  const auto add = [&](const std::string& name, const at::Tensor& tensor, std::int64_t begin,
                       const at::Tensor& target) {
    const std::string place = model_key(saved.name_of(name));
    const bool is_there = is_same(saved.checkpoint, place, extent_of(tensor, name));
    if (options.strict || is_there) reads.push_back({place, begin, target.detach()});
  };
  for_each_of_the_model(view, [&](const std::string& name, const at::Tensor& tensor) {
    if (!is_fully_sharded(tensor)) add(name, tensor, 0, tensor);
  });
  view.for_each_share([&](const TrainingView::Leaf& leaf) {
    add(leaf.name, leaf.parameter, leaf.begin, leaf.elements);
  });
  return reads;
}

void read_into(const Checkpoint& checkpoint, const Read& read) {
  const at::NoGradGuard no_grad;
  at::Tensor target = read.target;
  const bool is_plain =
      target.is_cpu() && target.is_contiguous() && !target.is_conj() && !target.is_neg();
  const at::Tensor values = is_plain ? target : at::empty(target.sizes(), target.scalar_type());
  checkpoint.read(read.key, read.dtype(), read.begin,
                  {static_cast<std::byte*>(values.data_ptr()), values.nbytes()});
  if (!values.is_same(target)) target.copy_(values);
}

void add_masters(const TrainingView& view, const SavedTraining& saved, std::vector<Read>& reads) {
  for (const TrainingView::Leaf& leaf : view.leaves) {
    const std::string place = master_key(saved.name_of(leaf.name));
    if (!leaf.has_master() || !saved.checkpoint.tensors().contains(place)) continue;
    saved.checkpoint.require(place, dtype_of(leaf.values), leaf.parameter.sizes().vec());
    reads.push_back({place, leaf.begin, leaf.values.detach()});
  }
}

/// Initializes master copies that the checkpoint lacks from their parameters, which have been read.
void copy_missing_masters(const TrainingView& view, const SavedTraining& saved) {
  const at::NoGradGuard no_grad;
  for (const TrainingView::Leaf& leaf : view.leaves) {
    if (!leaf.has_master()) continue;
    if (saved.checkpoint.tensors().contains(master_key(saved.name_of(leaf.name)))) continue;
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

/// Generators with their saved states.
using RandomStates = std::vector<std::pair<RandomSource, at::Tensor>>;

RandomStates read_random_states(const TrainingView& view, const Checkpoint& checkpoint) {
  RandomStates states;
  for (const RandomSource& source : random_sources(view)) {
    if (!checkpoint.tensors().contains(source.key)) continue;
    const at::Tensor own = source.state();
    checkpoint.require(source.key, DType::UInt8, own.sizes().vec());
    states.emplace_back(source, at::empty_like(own));
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

}  // namespace

void require_fit(const TrainingView& view, const SavedTraining& saved, const LoadOptions& options) {
  if (options.strict) require_same_model(view, saved);
  if (options.optimizer_state) require_same_state(view, saved);
}

void load_training(const TrainingView& view, const SavedTraining& saved, const LoadOptions& options,
                   const std::string& name) {
  const Checkpoint& checkpoint = saved.checkpoint;
  std::vector<Read> reads;
  std::vector<LeafState> states;
  RandomStates random_states;
  std::vector<SavedResidual> residuals;
  BucketHook::State hook_state;
  const auto on_all = [&](const char* step, const auto& work) {
    on_all_ranks({.name = name + step, .process_set = &view.set},
                 "loading the checkpoint " + checkpoint.path().string(), work);
  };
  on_all(".verify", [&] {
    reads = reads_of_the_model(view, saved, options);
    add_masters(view, saved, reads);
    if (options.optimizer_state) {
      states = plan_state(view, saved, reads);
      residuals = find_residuals(view, saved);
      verify_residuals(residuals, saved);
      hook_state = read_hook_state(view, checkpoint);
    }
    for (const Read& read : reads) {
      checkpoint.verify(read.key, read.dtype(), read.begin, read.target.numel());
    }
    if (options.random_state) random_states = read_random_states(view, checkpoint);
  });
  if (options.optimizer_state) {
    // Before the new state is read, so that old and new state are never in memory together.
    for (const TrainingView::Leaf& leaf : view.leaves) view.wrapped.erase_state(leaf.values);
  }
  on_all(".read", [&] {
    for (const Read& read : reads) read_into(checkpoint, read);
    copy_missing_masters(view, saved);
    load_residuals(view, residuals, saved);
    if (options.optimizer_state && view.hook.set_state) view.hook.set_state(hook_state);
    for (auto& [source, state] : random_states) source.restore(state);
  });
  for (const auto& [leaf, fields] : states) view.wrapped.set_state(leaf->values, fields);
}

}  // namespace kolo::tensors

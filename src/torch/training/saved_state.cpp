#include "torch/training/saved_state.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <unordered_set>
#include <utility>
#include <variant>

#include <ATen/ops/empty.h>

#include "kolo/error.hpp"
#include "train/tensors/tensor_memory.hpp"

namespace kolo::train {
namespace {

using ParameterState = TrainingDetails::State;

/// A parameter's name in the checkpoint, and its state there; null if it has none.
std::pair<std::string, const ParameterState*> state_of(const SavedTraining& saved,
                                                       const TrainingView::Leaf& leaf) {
  const std::string& name = saved.name_of(leaf.name);
  const auto found = saved.details.state.find(name);
  return {name, found == saved.details.state.end() ? nullptr : &found->second};
}

[[noreturn]] void refuse(const TrainingView& view, const SavedTraining& saved,
                         const std::string& reason) {
  throw InvalidArgument("the checkpoint " + saved.path.string() + " has optimizer state of " +
                        saved.details.optimizer + ", which is not that of the program's " +
                        view.wrapped.class_name() + ": " + reason +
                        ". Load with optimizer_state = false to start with new state.");
}

/// Checks the state of one parameter for a LibTorch class, whose kernels rely on its fields.
void require_known_fields(const TrainingView& view, const SavedTraining& saved,
                          const TrainingView::Leaf& leaf, const std::vector<KnownField>& known) {
  const auto [name, state] = state_of(saved, leaf);
  std::size_t taken = 0;
  for (const KnownField& field : known) {
    const auto number = state->numbers.find(field.name);
    const auto tensor = state->tensors.find(field.name);
    const bool is_number = number != state->numbers.end();
    const bool is_tensor = tensor != state->tensors.end();
    if (!is_number && !is_tensor && field.is_optional) continue;
    if (is_tensor != field.is_tensor || is_number == field.is_tensor) {
      refuse(view, saved,
             "'" + name + "' has no " + (field.is_tensor ? "tensor" : "number") + " '" +
                 field.name + "'");
    }
    ++taken;
    if (is_number) {
      const auto* const steps = std::get_if<std::int64_t>(&number->second);
      if (steps != nullptr && *steps >= 0 && *steps <= kMaxSteps) continue;
      refuse(view, saved, "'" + field.name + "' of '" + name + "' is not a number of steps");
    }
    const std::string key = state_key(field.name, name);
    const auto found = saved.index.tensors.find(key);
    const bool is_narrow =
        found != saved.index.tensors.end() && found->second.dtype == dtype_of(leaf.parameter);
    saved.require(key, is_narrow ? dtype_of(leaf.parameter) : *dtype_of(leaf.stepped),
                  leaf.parameter.sizes().vec());
    if (!tensor->second) {
      refuse(view, saved, "'" + field.name + "' of '" + name + "' is not elementwise");
    }
  }
  if (taken == state->numbers.size() + state->tensors.size()) return;
  refuse(view, saved, "'" + name + "' has other fields");
}

/// Checks the state of one parameter for an unknown class: tries each combination of fields once,
/// to see whether the class takes it.
void require_own_fields(const TrainingView& view, const SavedTraining& saved,
                        const TrainingView::Leaf& leaf, std::set<std::string>& tried) {
  const auto [name, state] = state_of(saved, leaf);
  std::string kind;
  for (const auto& [field, number] : state->numbers) {
    kind += field + '\0' + std::to_string(number.index()) + '\0';
  }
  for (const auto& [field, is_elementwise] : state->tensors) {
    const std::string key = state_key(field, name);
    const auto found = saved.index.tensors.find(key);
    if (found == saved.index.tensors.end() ||
        (is_elementwise && found->second.shape != leaf.parameter.sizes().vec())) {
      refuse(view, saved, "there is no '" + key + "' of the shape of its parameter");
    }
    kind += field + '\0' + std::string(kolo::name_of(found->second.dtype)) + '\0';
  }
  if (!tried.insert(kind).second) return;
  const std::size_t taken = view.wrapped.count_accepted(fields_in(saved, leaf));
  if (taken == state->numbers.size() + state->tensors.size()) return;
  refuse(view, saved, "'" + name + "' has other fields");
}

/// Refuses tensors of state that belong to no parameter.
void require_no_other_tensors(const TrainingView& view, const SavedTraining& saved) {
  std::unordered_set<std::string> known;
  for (const auto& [name, state] : saved.details.state) {
    for (const auto& [field, is_elementwise] : state.tensors) known.insert(state_key(field, name));
  }
  for (const auto& [key, tensor] : saved.index.tensors) {
    if (key.starts_with(kStatePrefix) && !known.contains(key)) {
      refuse(view, saved, "'" + key + "' belongs to no parameter's state");
    }
  }
}

}  // namespace

void require_same_state(const TrainingView& view, const SavedTraining& saved) {
  require_no_other_tensors(view, saved);
  std::vector<KnownField> known;
  bool is_first = true;
  std::set<std::string> tried;
  for (const TrainingView::Leaf& leaf : view.leaves) {
    if (state_of(saved, leaf).second == nullptr) continue;
    if (std::exchange(is_first, false)) known = view.wrapped.known_fields();
    if (known.empty()) {
      require_own_fields(view, saved, leaf, tried);
    } else {
      require_known_fields(view, saved, leaf, known);
    }
  }
}

std::vector<StateField> fields_in(const SavedTraining& saved, const TrainingView::Leaf& leaf) {
  const auto [name, state] = state_of(saved, leaf);
  std::vector<StateField> fields;
  if (state == nullptr) return fields;
  for (const auto& [field, number] : state->numbers) {
    fields.push_back({field, std::visit([](auto value) { return c10::IValue(value); }, number)});
  }
  for (const auto& [field, is_elementwise] : state->tensors) {
    const CheckpointIndex::Tensor& tensor = saved.index.tensors.at(state_key(field, name));
    const at::TensorOptions type =
        at::TensorOptions(scalar_type_of(tensor.dtype)).device(leaf.values.device());
    fields.push_back({field, at::empty(is_elementwise ? leaf.values.sizes() : tensor.shape, type)});
  }
  return fields;
}

}  // namespace kolo::train

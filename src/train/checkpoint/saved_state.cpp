#include "train/checkpoint/saved_state.hpp"

#include <cstdint>
#include <mutex>
#include <unordered_set>
#include <variant>

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include "checkpoint/safetensors.hpp"
#include "checkpoint/untrusted_text.hpp"
#include "kolo/error.hpp"
#include "train/tensors/generator_state.hpp"
#include "train/tensors/tensor_memory.hpp"

namespace kolo::train {
namespace {

/// Throws InvalidArgument for a parameter or buffer whose name is not UTF-8: no file can hold it.
void require_storable_names(const TrainingView& view) {
  const auto require = [](const char* kind, const std::string& name) {
    if (checkpoints::is_utf8(name)) return;
    throw InvalidArgument("the name of " + std::string(kind) + " '" + checkpoints::printable(name) +
                          "' is not UTF-8, which files of tensors need. Rename it.");
  };
  for (const auto& [name, tensor] : view.model.parameters) require("parameter", name);
  for (const auto& [name, first] : view.model.aliases) require("parameter", name);
  for (const auto& [name, tensor] : view.model.buffers) require("buffer", name);
}

using Json = nlohmann::json;

Json number_of(const StateField& field, const std::string& parameter) {
  if (field.value.isInt()) return field.value.toInt();
  if (field.value.isDouble()) return field.value.toDouble();
  if (field.value.isBool()) return field.value.toBool();
  throw InvalidArgument("the optimizer's state of '" + parameter + "' has under '" + field.name +
                        "' what is neither a tensor nor a number");
}

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

/// "Adam" of "torch::optim::Adam", and of Python's "torch.optim.adam.Adam".
std::string last_name(const std::string& class_name) {
  return class_name.substr(class_name.find_last_of(".:") + 1);
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
    saved.require(key, is_narrow ? dtype_of(leaf.parameter) : *dtype_of(leaf.stepped_dtype),
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

LeafStates::LeafStates(const TrainingView& view, const checkpoints::Ranks& ranks,
                       const std::string& what, const std::function<void()>& work)
    : view_(view) {
  merge(ranks.run(".state", what, [&] {
    require_storable_names(view);
    work();
    for (const TrainingView::Leaf& leaf : view.leaves) {
      fields_.push_back(view.wrapped.state(leaf.values).value_or(std::vector<StateField>{}));
    }
    return own_tensors().dump();
  }));
}

/// As lists [parameter, field, dtype, shape, whether elementwise].
Json LeafStates::own_tensors() const {
  Json tensors = Json::array();
  for (std::size_t i = 0; i < view_.leaves.size(); ++i) {
    const TrainingView::Leaf& leaf = view_.leaves[i];
    for (const StateField& field : fields_[i]) {
      if (!field.value.isTensor()) {
        static_cast<void>(number_of(field, leaf.name));  // throws if it is neither
        continue;
      }
      const TensorView extent = extent_of(field.value.toTensor(), state_key(field.name, leaf.name));
      const bool has_elements = is_elementwise(field, leaf.values);
      tensors.push_back({leaf.name, field.name, checkpoints::safetensors_name(extent.dtype),
                         has_elements ? leaf.parameter.sizes().vec() : extent.shape, has_elements});
    }
  }
  return tensors;
}

void LeafStates::merge(const std::vector<std::string>& all) {
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    for (const Json& entry : Json::parse(all[rank])) {
      Tensor& tensor = tensors_[{entry[0].get<std::string>(), entry[1].get<std::string>()}];
      tensor.ranks.insert(static_cast<int>(rank));
      tensor.dtype = *checkpoints::dtype_from_safetensors(entry[2].get<std::string>());
      tensor.shape = entry[3].get<std::vector<std::int64_t>>();
      tensor.is_elementwise = entry[4].get<bool>();
    }
  }
}

Json LeafStates::describe() const {
  Json all = Json::object();
  for (std::size_t i = 0; i < view_.leaves.size(); ++i) {
    const std::string& parameter = view_.leaves[i].name;
    if (!view_.wrapped.has_state(view_.leaves[i].values)) continue;
    Json& described = all[parameter];
    described = {{"numbers", Json::object()}, {"tensors", Json::object()}};
    for (const StateField& field : fields_[i]) {
      if (field.value.isTensor()) {
        described["tensors"][field.name] = tensors_.at({parameter, field.name}).is_elementwise;
      } else {
        described["numbers"][field.name] = number_of(field, parameter);
      }
    }
  }
  return all;
}

void SavedTraining::require(const std::string& key, DType dtype,
                            const std::vector<std::int64_t>& shape) const {
  const auto found = index.tensors.find(key);
  if (found == index.tensors.end()) {
    throw InvalidArgument("the checkpoint " + path.string() + " has no '" + key + "'");
  }
  const auto& [saved_dtype, saved_shape, slices] = found->second;
  if (saved_dtype == dtype && saved_shape == shape) return;
  throw InvalidArgument("'" + key + "' is " + checkpoints::text_of(saved_dtype, saved_shape) +
                        " in the checkpoint " + path.string() + ", but " +
                        checkpoints::text_of(dtype, shape) + " in the program");
}

void require_same_state(const TrainingView& view, const SavedTraining& saved, bool strict) {
  if (strict && last_name(saved.details.optimizer) != last_name(view.wrapped.class_name())) {
    refuse(view, saved, "it is of another class, which strict = false takes where it fits");
  }
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
    const checkpoints::CheckpointIndex::Tensor& tensor =
        saved.index.tensors.at(state_key(field, name));
    const at::TensorOptions type =
        at::TensorOptions(scalar_type_of(tensor.dtype)).device(leaf.values.device());
    fields.push_back({field, at::empty(is_elementwise ? leaf.values.sizes() : tensor.shape, type)});
  }
  return fields;
}

std::vector<SavedResidual> find_residuals(const TrainingView& view, const SavedTraining& saved) {
  std::vector<SavedResidual> residuals;
  if (saved.details.residual_ranks == 0) return residuals;
  for (const TrainingView::Residual& target : view.residuals.own) {
    SavedResidual residual{&target, {}};
    for (int copy = view.residuals.copy;; copy += view.residuals.copies) {
      std::string key = residual_key(copy, saved.name_of(target.name));
      if (!saved.has(key)) break;
      saved.require(key, DType::Float32, target.parameter.sizes().vec());
      residual.keys.push_back(std::move(key));
    }
    if (!residual.keys.empty()) residuals.push_back(std::move(residual));
  }
  return residuals;
}

void verify_residuals(const std::vector<SavedResidual>& residuals,
                      const checkpoints::Checkpoint& checkpoint) {
  for (const auto& [target, keys] : residuals) {
    for (const std::string& key : keys) {
      checkpoint.verify(key, DType::Float32, target->begin, target->elements.numel());
    }
  }
}

void load_residuals(const TrainingView& view, const std::vector<SavedResidual>& residuals,
                    const SavedTraining& saved, const checkpoints::Checkpoint& checkpoint) {
  const at::NoGradGuard no_grad;
  for (const TrainingView::Residual& residual : view.residuals.own) {
    at::Tensor(residual.elements).zero_();
  }
  // A mean over another number of ranks has another divisor, unless that is the sum of counts.
  const double factor =
      view.residuals.are_averaged && !saved.details.loss_reference
          ? static_cast<double>(view.set.size()) / static_cast<double>(saved.details.residual_ranks)
          : 1.0;
  for (const auto& [target, keys] : residuals) {
    at::Tensor sum = target->elements;
    const at::Tensor values = at::empty(sum.sizes(), at::kFloat);  // in CPU memory
    for (const std::string& key : keys) {
      checkpoint.read(key, DType::Float32, target->begin,
                      {static_cast<std::byte*>(values.data_ptr()), values.nbytes()});
      sum.add_(values.to(sum.device()), factor);
    }
  }
}

at::Tensor RandomSource::state() const { return state_of(generator); }

void RandomSource::restore(const at::Tensor& state) { set_state_of(generator, state); }

void RandomSource::require_valid(const at::Tensor& state) const {
  at::Generator source = generator;
  try {
    const std::lock_guard lock(source.mutex());
    source.clone().set_state(state);
  } catch (const c10::Error& error) {
    throw InvalidArgument("'" + key +
                          "' is not a valid generator state: " + error.what_without_backtrace());
  }
}

std::vector<RandomSource> random_sources(const TrainingView& view) {
  const std::string key = "random." + std::to_string(view.set.rank());
  std::vector<RandomSource> sources{{key, at::globalContext().defaultGenerator(at::kCPU)}};
  for (const auto& [name, tensor] : view.model.parameters) {
    if (!tensor.is_cuda()) continue;
    sources.push_back({key + ".cuda", at::globalContext().defaultGenerator(tensor.device())});
    break;
  }
  return sources;
}

}  // namespace kolo::train

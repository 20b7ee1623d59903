#include "torch/load_training.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <sstream>
#include <typeinfo>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <c10/util/Type.h>

#include "kolo/error.hpp"
#include "torch/checkpoint/on_all_ranks.hpp"
#include "torch/random_sources.hpp"
#include "torch/state_fields.hpp"
#include "torch/tensor_memory.hpp"

namespace kolo::tensors {
namespace {

std::string text_of(DType dtype, const std::vector<std::int64_t>& shape) {
  std::ostringstream text;
  text << name_of(dtype) << " " << at::IntArrayRef(shape);
  return text.str();
}

/// What the checkpoint calls the model's tensor `name`: a tied parameter is there under one name.
std::string name_in(const Checkpoint& checkpoint, const std::string& name) {
  const nlohmann::json& aliases = checkpoint.details().at("aliases");
  return aliases.contains(name) ? aliases.at(name).get<std::string>() : name;
}
std::string place_of(const Checkpoint& checkpoint, const std::string& name) {
  return model_key(name_in(checkpoint, name));
}

/// Whether a tensor of the checkpoint is `tensor`'s; throws where it is another one.
void require_same(const Checkpoint& checkpoint, const std::string& key, DType dtype,
                  const std::vector<std::int64_t>& shape) {
  const auto found = checkpoint.tensors().find(key);
  if (found == checkpoint.tensors().end()) {
    throw InvalidArgument("the checkpoint " + checkpoint.path().string() + " has no '" + key + "'");
  }
  const Checkpoint::Tensor& saved = found->second;
  if (saved.dtype == dtype && saved.shape == shape) return;
  throw InvalidArgument("'" + key + "' is " + text_of(saved.dtype, saved.shape) +
                        " in the checkpoint " + checkpoint.path().string() + ", but " +
                        text_of(dtype, shape) + " in the program");
}

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

void require_same_model(const TrainingView& view, const Checkpoint& checkpoint) {
  std::unordered_set<std::string> known;
  for_each_of_the_model(view, [&](const std::string& name, const at::Tensor& tensor) {
    const TensorView own = view_of(tensor, name);
    const std::string place = place_of(checkpoint, name);
    require_same(checkpoint, place, own.dtype, own.shape);
    known.insert(place);
  });
  for (const auto& [key, tensor] : checkpoint.tensors()) {
    if (!key.starts_with(model_key("")) || known.contains(key)) continue;
    throw InvalidArgument(
        "the checkpoint " + checkpoint.path().string() + " has '" + key +
        "', which the program has not. Load with strict = false to leave it out.");
  }
}

/// The state that the checkpoint has of a parameter; null where it has none.
const nlohmann::json* state_of(const Checkpoint& checkpoint, const std::string& name) {
  const nlohmann::json& states = checkpoint.details().at("state");
  const auto found = states.find(name_in(checkpoint, name));
  return found == states.end() ? nullptr : &*found;
}

/// Fields of a part's state; their tensors have no values yet.
std::vector<StateField> fields_in(const Checkpoint& checkpoint, const TrainingView::Part& part,
                                  const nlohmann::json& state) {
  std::vector<StateField> fields;
  for (const auto& [field, value] : state.at("numbers").items()) {
    if (value.is_boolean()) {
      fields.push_back({field, value.get<bool>()});
    } else if (value.is_number_integer()) {
      fields.push_back({field, value.get<std::int64_t>()});
    } else {
      fields.push_back({field, value.get<double>()});
    }
  }
  for (const auto& [field, is_elementwise] : state.at("tensors").items()) {
    const std::string key = state_key(field, name_in(checkpoint, part.name));
    const Checkpoint::Tensor& saved = checkpoint.tensors().at(key);
    const at::ScalarType type = scalar_type_of(saved.dtype);
    const bool has_elements = is_elementwise.get<bool>();
    fields.push_back({field, at::empty(has_elements ? part.values.sizes() : saved.shape,
                                       at::TensorOptions(type).device(part.values.device()))});
  }
  return fields;
}

/// The optimizer's class takes just these fields.
void require_same_state(const TrainingView& view, const Checkpoint& checkpoint) {
  bool knows_the_class = false;
  for (const TrainingView::Part& part : view.parts) {
    const nlohmann::json* const saved = state_of(checkpoint, part.name);
    if (saved == nullptr) continue;
    for (const auto& [field, is_elementwise] : saved->at("tensors").items()) {
      const std::string key = state_key(field, name_in(checkpoint, part.name));
      const auto found = checkpoint.tensors().find(key);
      if (found == checkpoint.tensors().end() ||
          (is_elementwise.get<bool>() && found->second.shape != part.whole.sizes().vec())) {
        throw InvalidArgument("the checkpoint " + checkpoint.path().string() + " has no '" + key +
                              "' of the shape of its parameter");
      }
    }
    if (std::exchange(knows_the_class, true)) continue;
    std::size_t taken = 0;
    if (auto state = new_state(view.wrapped)) {
      taken = fields_of(*state_with(std::move(state), fields_in(checkpoint, part, *saved))).size();
    }
    if (taken == saved->at("numbers").size() + saved->at("tensors").size()) continue;
    throw InvalidArgument(
        "the checkpoint " + checkpoint.path().string() + " has optimizer state of " +
        checkpoint.details().at("optimizer").get<std::string>() +
        ", which is not that of the program's " + c10::demangle(typeid(view.wrapped).name()) +
        ". Load with optimizer_state = false to train with a new state.");
  }
}

/// What of the checkpoint goes where.
struct Read {
  std::string key;
  std::int64_t begin;
  at::Tensor target;  // contiguous
};

std::vector<Read> reads_of_the_model(const TrainingView& view, const Checkpoint& checkpoint,
                                     const LoadOptions& options) {
  std::vector<Read> reads;
  for_each_of_the_model(view, [&](const std::string& name, const at::Tensor& tensor) {
    const std::string place = place_of(checkpoint, name);
    const bool is_there = is_same(checkpoint, place, view_of(tensor, name));
    if (options.strict || is_there) reads.push_back({place, 0, tensor.detach()});
  });
  return reads;
}

void read_into(const Checkpoint& checkpoint, const Read& read) {
  const at::NoGradGuard no_grad;
  at::Tensor target = read.target;
  const at::Tensor values = target.is_cpu() && target.is_contiguous()
                                ? target
                                : at::empty(target.sizes(), target.scalar_type());
  checkpoint.read(read.key, read.begin, values.numel(), values.data_ptr());
  if (!values.is_same(target)) target.copy_(values);
}

}  // namespace

void require_fit(const TrainingView& view, const Checkpoint& checkpoint,
                 const LoadOptions& options) {
  if (options.strict) require_same_model(view, checkpoint);
  if (options.optimizer_state) require_same_state(view, checkpoint);
}

void load_training(const TrainingView& view, const Checkpoint& checkpoint,
                   const LoadOptions& options, const std::string& name) {
  std::vector<Read> reads = reads_of_the_model(view, checkpoint, options);
  // Of each part, its state's fields, whose tensors are to be filled.
  std::vector<std::pair<const TrainingView::Part*, std::vector<StateField>>> states;
  for (const TrainingView::Part& part : view.parts) {
    const nlohmann::json* const saved =
        options.optimizer_state ? state_of(checkpoint, part.name) : nullptr;
    if (saved == nullptr) continue;
    states.emplace_back(&part, fields_in(checkpoint, part, *saved));
    for (const StateField& field : states.back().second) {
      if (!field.value.isTensor()) continue;
      const bool is_elementwise = saved->at("tensors").at(field.name).get<bool>();
      reads.push_back({state_key(field.name, name_in(checkpoint, part.name)),
                       is_elementwise ? part.begin : 0, field.value.toTensor()});
    }
  }
  std::vector<std::pair<RandomSource, at::Tensor>> random_states;
  for (const RandomSource& source : random_sources(view)) {
    if (!options.random_state || !checkpoint.tensors().contains(source.key)) continue;
    const at::Tensor state = at::empty(checkpoint.tensors().at(source.key).shape, at::kByte);
    random_states.emplace_back(source, state);
    reads.push_back({source.key, 0, state});
  }
  const std::string what = "loading the checkpoint " + checkpoint.path().string();
  const auto on_all = [&](const char* step, const std::function<void()>& work) {
    on_all_ranks({.name = name + step, .process_set = &view.set}, what, [&]() -> std::string {
      work();
      return {};
    });
  };
  on_all(".verify", [&] {
    for (const Read& read : reads) checkpoint.verify(read.key, read.begin, read.target.numel());
  });
  auto& all = view.wrapped.state();
  if (options.optimizer_state) {
    // First, so that the old and the new are not both in memory.
    for (const TrainingView::Part& part : view.parts) all.erase(part.values.unsafeGetTensorImpl());
  }
  on_all(".read", [&] {
    for (const Read& read : reads) read_into(checkpoint, read);
    for (auto& [source, state] : random_states) source.restore(state);
  });
  for (const auto& [part, fields] : states) {
    all[part->values.unsafeGetTensorImpl()] = state_with(new_state(view.wrapped), fields);
  }
}

}  // namespace kolo::tensors

#include "torch/wrapped/libtorch_state.hpp"

#include <concepts>
#include <cstdint>
#include <sstream>
#include <type_traits>
#include <utility>

#include <ATen/ops/zeros.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include "kolo/error.hpp"
#include "torch/wrapped/libtorch_classes.hpp"
#include "torch/wrapped/swapped_parameters.hpp"

namespace kolo::tensors {
namespace {

using torch::optim::OptimizerParamState;
using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

constexpr bool kOptional = true;

// The fields of each LibTorch class: calls `visit(name, reference, is_optional)`.
template <class Visit>
void visit_fields(torch::optim::SGDParamState& state, Visit visit) {
  visit("momentum_buffer", state.momentum_buffer(), !kOptional);
}
template <class State, class Visit>
  requires std::same_as<State, torch::optim::AdamParamState> ||
           std::same_as<State, torch::optim::AdamWParamState>
void visit_fields(State& state, Visit visit) {
  visit("step", state.step(), !kOptional);
  visit("exp_avg", state.exp_avg(), !kOptional);
  visit("exp_avg_sq", state.exp_avg_sq(), !kOptional);
  visit("max_exp_avg_sq", state.max_exp_avg_sq(), kOptional);
}
template <class Visit>
void visit_fields(torch::optim::RMSpropParamState& state, Visit visit) {
  visit("step", state.step(), !kOptional);
  visit("square_avg", state.square_avg(), !kOptional);
  visit("momentum_buffer", state.momentum_buffer(), kOptional);
  visit("grad_avg", state.grad_avg(), kOptional);
}
template <class Visit>
void visit_fields(torch::optim::AdagradParamState& state, Visit visit) {
  visit("step", state.step(), !kOptional);
  visit("sum", state.sum(), !kOptional);
}

/// Visits the fields of a LibTorch class; returns whether `state` is of one.
template <class Visit>
bool visit_known(OptimizerParamState& state, Visit visit) {
  return visit_libtorch_classes([&]<class Class>(Class) {
    auto* const known = dynamic_cast<typename Class::State*>(&state);
    if (known != nullptr) visit_fields(*known, visit);
    return known != nullptr;
  });
}

InputArchive to_input(OutputArchive& written) {
  std::stringstream stream;
  written.save_to(stream);
  InputArchive archive;
  archive.load_from(stream);
  return archive;
}

[[noreturn]] void fail(const c10::Error& error) {
  throw InvalidArgument(
      std::string(
          "the wrapped optimizer has state that cannot be read or sharded without its class's "
          "serialize(): ") +
      error.what_without_backtrace() +
      " Implement it, or wrap the optimizer before its first step().");
}

void set(const c10::IValue& value, at::Tensor& target) { target = value.toTensor(); }
void set(const c10::IValue& value, std::int64_t& target) { target = value.toInt(); }

}  // namespace

std::vector<StateField> fields_of(const OptimizerParamState& state) {
  std::vector<StateField> fields;
  const std::unique_ptr<OptimizerParamState> copy = state.clone();  // shares the tensors
  const bool is_known = visit_known(*copy, [&](const char* name, const auto& value, bool) {
    const c10::IValue field(value);
    if (!field.isTensor() || field.toTensor().defined()) fields.push_back({name, field});
  });
  if (is_known) return fields;
  try {
    OutputArchive written;
    state.serialize(written);
    InputArchive archive = to_input(written);
    for (const std::string& key : archive.keys()) {
      fields.push_back({key, {}});
      archive.read(key, fields.back().value);
    }
  } catch (const c10::Error& error) {
    fail(error);
  }
  return fields;
}

std::vector<KnownField> known_fields_of(OptimizerParamState& state) {
  std::vector<KnownField> fields;
  visit_known(state, [&](const char* name, const auto& value, bool is_optional) {
    fields.push_back({name, c10::IValue(value).isTensor(), is_optional});
  });
  return fields;
}

std::unique_ptr<OptimizerParamState> state_with(std::unique_ptr<OptimizerParamState> state,
                                                const std::vector<StateField>& fields) {
  if (state == nullptr) {
    throw InvalidArgument("the wrapped optimizer keeps no state, so none can be loaded");
  }
  const bool is_known = visit_known(*state, [&](const std::string& name, auto& target, bool) {
    target = std::remove_reference_t<decltype(target)>();
    for (const StateField& field : fields) {
      if (field.name == name) set(field.value, target);
    }
  });
  if (is_known) return state;
  try {
    OutputArchive written;
    for (const StateField& field : fields) written.write(field.name, field.value);
    InputArchive archive = to_input(written);
    state->serialize(archive);
  } catch (const c10::Error& error) {
    fail(error);
  }
  return state;
}

std::unique_ptr<OptimizerParamState> new_state(torch::optim::Optimizer& optimizer) {
  std::unique_ptr<OptimizerParamState> known;
  const bool is_known = visit_libtorch_classes([&]<class Class>(Class) {
    if (dynamic_cast<typename Class::Optimizer*>(&optimizer) == nullptr) return false;
    known = std::make_unique<typename Class::State>();
    return true;
  });
  if (is_known) return known;
  at::Tensor element = at::zeros({1}).requires_grad_();
  element.mutable_grad() = at::zeros({1});
  {
    const SwappedParameters swapped(optimizer, 0, {element});
    optimizer.step();
  }
  auto& states = optimizer.state();
  const auto made = states.find(element.unsafeGetTensorImpl());
  if (made == states.end()) return nullptr;
  std::unique_ptr<OptimizerParamState> state = std::move(made->second);
  states.erase(made);
  return state;
}

}  // namespace kolo::tensors

#include "train/wrapped/libtorch_optimizer.hpp"

#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Type.h>
#include <torch/optim/lbfgs.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include "kolo/error.hpp"
#include "kolo/torch/parameter_sync.hpp"
#include "kolo/torch/tensor_needs.hpp"
#include "train/wrapped/fused_step.hpp"
#include "train/wrapped/options.hpp"

namespace kolo::train {
namespace {

template <class State>
class GuardState final : public State {
 public:
  GuardState() {
    const at::Tensor none = at::empty({0});
    if constexpr (requires { this->momentum_buffer(); }) this->momentum_buffer(none);
    if constexpr (requires { this->exp_avg(); }) {
      this->exp_avg(none).exp_avg_sq(none).max_exp_avg_sq(none);
    }
    if constexpr (requires { this->square_avg(); }) this->square_avg(none).grad_avg(none);
    if constexpr (requires { this->sum(); }) this->sum(none);
  }

  using State::serialize;
  void serialize(torch::serialize::OutputArchive&) const override {
    throw InvalidArgument(
        "DistributedOptimizer: torch::save of the wrapped optimizer would write this rank's shards "
        "of the state alone. Call save(folder) or save_full_state(file) of the "
        "DistributedOptimizer.");
  }
};

std::unique_ptr<torch::optim::OptimizerParamState> guard_for(torch::optim::Optimizer& optimizer) {
  std::unique_ptr<torch::optim::OptimizerParamState> guard;
  visit_libtorch_classes([&]<class Class>(Class) {
    if (dynamic_cast<typename Class::Optimizer*>(&optimizer) == nullptr) return false;
    guard = std::make_unique<GuardState<typename Class::State>>();
    return true;
  });
  return guard;
}

}  // namespace

SaveGuard::SaveGuard(torch::optim::Optimizer& optimizer) : optimizer_(optimizer) {
  if (auto state = guard_for(optimizer)) optimizer.state()[this] = std::move(state);
}

SaveGuard::~SaveGuard() { optimizer_.state().erase(this); }

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

[[noreturn]] void fail(const c10::Error& error) {
  throw InvalidArgument(std::string("the wrapped optimizer has state that cannot be read or "
                                    "sharded without serialize() of its "
                                    "class and load() of the optimizer: ") +
                        error.what_without_backtrace() +
                        " Implement them, or wrap the optimizer before its first step().");
}

void set(const c10::IValue& value, at::Tensor& target) { target = value.toTensor(); }
void set(const c10::IValue& value, std::int64_t& target) { target = value.toInt(); }

/// An empty state, if the optimizer is of a LibTorch class.
std::unique_ptr<OptimizerParamState> make_known_state(const torch::optim::Optimizer& optimizer) {
  std::unique_ptr<OptimizerParamState> state;
  visit_libtorch_classes([&]<class Class>(Class) {
    if (dynamic_cast<const typename Class::Optimizer*>(&optimizer) == nullptr) return false;
    state = std::make_unique<typename Class::State>();
    return true;
  });
  return state;
}

/// While it lives, the optimizer's own state is put aside.
class WithoutState {
 public:
  explicit WithoutState(torch::optim::Optimizer& optimizer)
      : optimizer_(optimizer), own_(std::exchange(optimizer.state(), {})) {}
  ~WithoutState() { optimizer_.state() = std::move(own_); }
  WithoutState(const WithoutState&) = delete;  // it puts it back once
  WithoutState& operator=(const WithoutState&) = delete;

 private:
  torch::optim::Optimizer& optimizer_;
  std::remove_reference_t<decltype(std::declval<torch::optim::Optimizer>().state())> own_;
};

/// What an optimizer that has one parameter in its first group saves, in LibTorch's format, if the
/// parameter has these fields of state. Other values are those that it would save now.
OutputArchive archive_with(const torch::optim::Optimizer& optimizer,
                           const std::vector<StateField>& fields) {
  const std::string parameter = "1";  // LibTorch's key is an address
  const auto count = [](std::size_t number) {
    return at::scalar_tensor(static_cast<std::int64_t>(number), at::kLong);
  };
  OutputArchive whole;
  OutputArchive state(whole.compilation_unit());
  OutputArchive of_parameter(whole.compilation_unit());
  for (const StateField& field : fields) of_parameter.write(field.name, field.value);
  state.write(parameter, of_parameter);
  OutputArchive groups(whole.compilation_unit());
  groups.write("param_groups/size", count(optimizer.param_groups().size()));
  for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
    OutputArchive group(whole.compilation_unit());
    group.write("params/size", count(i == 0 ? 1 : 0));
    if (i == 0) group.write("params/0", c10::IValue(parameter));
    OutputArchive options(whole.compilation_unit());
    optimizer.param_groups()[i].options().serialize(options);
    group.write("options", options);
    groups.write("param_groups/" + std::to_string(i), group);
  }
  whole.write("pytorch_version", c10::IValue("1.5.0"));
  whole.write("state", state);
  whole.write("param_groups", groups);
  OutputArchive own;
  optimizer.save(own);
  InputArchive saved = to_input(own);
  for (const std::string& key : saved.keys()) {
    c10::IValue value;
    const bool is_known = key == "pytorch_version" || key == "state" || key == "param_groups";
    if (!is_known && saved.try_read(key, value)) whole.write(key, value);
  }
  return whole;
}

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

void create_expected_state(torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<torch::optim::Adagrad*>(&optimizer) == nullptr) return;
  const auto& defaults = static_cast<const torch::optim::AdagradOptions&>(optimizer.defaults());
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      auto& state = optimizer.state()[parameter.unsafeGetTensorImpl()];
      if (state != nullptr) continue;
      auto initial = std::make_unique<torch::optim::AdagradParamState>();
      initial->step(0).sum(at::full_like(parameter.detach(), defaults.initial_accumulator_value()));
      state = std::move(initial);
    }
  }
}

std::vector<KnownField> known_fields_of(const torch::optim::Optimizer& optimizer) {
  std::vector<KnownField> fields;
  if (const auto state = make_known_state(optimizer)) {
    visit_known(*state, [&](const char* name, const auto& value, bool is_optional) {
      fields.push_back({name, c10::IValue(value).isTensor(), is_optional});
    });
  }
  return fields;
}

std::unique_ptr<OptimizerParamState> make_state(torch::optim::Optimizer& optimizer,
                                                const std::vector<StateField>& fields) {
  if (auto known = make_known_state(optimizer)) {
    visit_known(*known, [&](const std::string& name, auto& target, bool) {
      target = std::remove_reference_t<decltype(target)>();
      for (const StateField& field : fields) {
        if (field.name == name) set(field.value, target);
      }
    });
    return known;
  }
  const at::Tensor element = at::zeros({1}).requires_grad_();
  std::unique_ptr<OptimizerParamState> state;
  try {
    const SwappedParameters swapped(optimizer, {{element}});
    const WithoutState only(optimizer);
    OutputArchive written = archive_with(optimizer, fields);
    InputArchive archive = to_input(written);
    optimizer.load(archive);
    std::swap(state, optimizer.state()[element.unsafeGetTensorImpl()]);
  } catch (const c10::Error& error) {
    fail(error);
  }
  if (state != nullptr) return state;
  throw InvalidArgument(
      "the wrapped optimizer's load() makes no state, and its step() may not be called for that. "
      "Implement save() and load() as LibTorch's optimizers do, with torch::optim::serialize.");
}

std::string LibTorchOptimizer::class_name() const {
  return c10::demangle(typeid(optimizer_).name());
}

std::string LibTorchOptimizer::problem(const DistributedOptimizerOptions&) const {
  if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer_) != nullptr) {
    return "LBFGS evaluates its closure several times a step and chooses by this rank's loss, so "
           "that ranks would diverge. Use an optimizer that does not.";
  }
  for (const auto& group : optimizer_.param_groups()) {
    if (std::string problem = problem_with_options(group.options()); !problem.empty()) {
      return problem;
    }
  }
  if (fused_ && !has_fused_step(optimizer_)) {
    return "fused = true steps torch::optim::Adam, AdamW and SGD, not " + class_name() +
           ". Leave it out.";
  }
  return {};
}

std::optional<bool> LibTorchOptimizer::needs_whole_tensors(std::size_t group) const {
  const auto* const options =
      dynamic_cast<const TensorNeeds*>(&optimizer_.param_groups()[group].options());
  if (options != nullptr) return options->needs_whole_tensors();
  if (const auto* const own = dynamic_cast<const TensorNeeds*>(&optimizer_)) {
    return own->needs_whole_tensors();
  }
  if (steps_leaves_separately()) return false;  // as all of LibTorch's classes
  return {};
}

at::Tensor LibTorchOptimizer::step(const LossClosure& closure) {
  create_expected_state();
  if (!fused_) return optimizer_.step(closure);
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode enable(true);
    loss = closure();
  }
  fused_step(optimizer_);
  return loss;
}

/// A derived class may override step().
bool LibTorchOptimizer::steps_leaves_separately() const {
  return visit_libtorch_classes(
      [&]<class Class>(Class) { return typeid(optimizer_) == typeid(typename Class::Optimizer); });
}

void LibTorchOptimizer::step_leaves(std::vector<std::vector<at::Tensor>> leaves) {
  const SwappedParameters swapped(optimizer_, std::move(leaves));
  step(nullptr);
}

std::shared_ptr<void> LibTorchOptimizer::keep_groups() {
  using AllOptions = std::vector<std::unique_ptr<torch::optim::OptimizerOptions>>;
  auto kept = std::make_unique<AllOptions>();
  for (const auto& group : optimizer_.param_groups()) kept->push_back(group.options().clone());
  return std::shared_ptr<void>(kept.release(), [this](void* all) {
    const std::unique_ptr<AllOptions> options(static_cast<AllOptions*>(all));
    for (std::size_t i = 0; i < options->size(); ++i) {
      optimizer_.param_groups()[i].set_options(std::move((*options)[i]));
    }
  });
}

bool LibTorchOptimizer::has_state(const at::Tensor& leaf) const {
  return optimizer_.state().count(leaf.unsafeGetTensorImpl()) != 0;
}

std::optional<std::vector<StateField>> LibTorchOptimizer::state(const at::Tensor& leaf) const {
  const auto found = optimizer_.state().find(leaf.unsafeGetTensorImpl());
  if (found == optimizer_.state().end()) return {};
  return fields_of(*found->second);
}

void LibTorchOptimizer::set_state(const at::Tensor& leaf, const std::vector<StateField>& fields) {
  auto state = make_state(optimizer_, fields);
  optimizer_.state()[leaf.unsafeGetTensorImpl()] = std::move(state);
}

void LibTorchOptimizer::erase_state(const at::Tensor& leaf) {
  optimizer_.state().erase(leaf.unsafeGetTensorImpl());
}

void LibTorchOptimizer::create_expected_state() { train::create_expected_state(optimizer_); }

std::vector<KnownField> LibTorchOptimizer::known_fields() { return known_fields_of(optimizer_); }

std::size_t LibTorchOptimizer::count_accepted(const std::vector<StateField>& fields) {
  return fields_of(*make_state(optimizer_, fields)).size();
}

void LibTorchOptimizer::broadcast_state(int root, ProcessSet& set) {
  broadcast_optimizer_state(optimizer_, root, &set);
}

}  // namespace kolo::train

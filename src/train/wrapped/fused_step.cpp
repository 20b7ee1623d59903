#include "train/wrapped/fused_step.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/StringUtil.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "kolo/error.hpp"

namespace kolo::train {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;
using Tensors = std::vector<at::Tensor>;

// --- checks, before anything changes ---

void require_dense_gradient(const at::Tensor& parameter) {
  if (parameter.grad().layout() == at::kStrided) return;
  throw InvalidArgument(
      "DistributedOptimizer: fused = true takes dense gradients, and there is a sparse one. Set "
      "sparse_as_dense, or fused = false.");
}

std::string text_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  return c10::str(tensor.scalar_type(), " ", tensor.sizes(), " on ", tensor.device(),
                  tensor.is_contiguous() ? "" : ", not contiguous");
}

/// The kernels do not check the size of state: they index it like the parameter.
void require_like(const at::Tensor& parameter, const at::Tensor& tensor, const char* name) {
  if (tensor.defined() && tensor.layout() == at::kStrided && tensor.sizes() == parameter.sizes() &&
      tensor.is_contiguous() && tensor.scalar_type() == parameter.scalar_type() &&
      tensor.device() == parameter.device()) {
    return;
  }
  throw InvalidArgument(std::string("DistributedOptimizer: the optimizer's state has a '") + name +
                        "' that is " + text_of(tensor) + ", of a parameter that is " +
                        text_of(parameter) + ", which fused = true cannot step. Give it the " +
                        "parameter's shape and type.");
}

/// Calls `check(parameter, state)` for the parameters that have a gradient and state.
template <class State, class Check>
void check_states(Optimizer& optimizer, const OptimizerParamGroup& group, const Check& check) {
  for (const at::Tensor& parameter : group.params()) {
    if (!parameter.grad().defined()) continue;
    require_dense_gradient(parameter);
    const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
    if (found == optimizer.state().end() || found->second == nullptr) continue;
    check(parameter, static_cast<State&>(*found->second));
  }
}

// --- steps ---

/// The state of `parameter`, and whether this call created it.
template <class State>
std::pair<State&, bool> state_of(Optimizer& optimizer, const at::Tensor& parameter) {
  auto& slot = optimizer.state()[parameter.unsafeGetTensorImpl()];
  const bool is_new = slot == nullptr;
  if (is_new) slot = std::make_unique<State>();
  return {static_cast<State&>(*slot), is_new};
}

// --- Adam and AdamW ---

struct AdamKernel {
  using Options = torch::optim::AdamOptions;
  using State = torch::optim::AdamParamState;
  template <class... Arguments>
  static void run(const Arguments&... arguments) {
    at::_fused_adam_(arguments...);
  }
};

struct AdamWKernel {
  using Options = torch::optim::AdamWOptions;
  using State = torch::optim::AdamWParamState;
  template <class... Arguments>
  static void run(const Arguments&... arguments) {
    at::_fused_adamw_(arguments...);
  }
};

struct AdamTensors {
  Tensors parameters, gradients, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps;
};

/// Counts a step, and creates Adam's state before the first one.
template <class State>
State& begin_step(Optimizer& optimizer, const at::Tensor& parameter, bool amsgrad) {
  const auto [state, is_new] = state_of<State>(optimizer, parameter);
  if (is_new) {
    state.exp_avg(at::zeros_like(parameter));
    state.exp_avg_sq(at::zeros_like(parameter));
    if (amsgrad) state.max_exp_avg_sq(at::zeros_like(parameter));
  }
  state.step(state.step() + 1);
  return state;
}

template <class Kernel>
void check_adam(Optimizer& optimizer, OptimizerParamGroup& group) {
  using State = typename Kernel::State;
  const auto& options = static_cast<const typename Kernel::Options&>(group.options());
  check_states<State>(optimizer, group, [&](const at::Tensor& parameter, State& state) {
    require_like(parameter, state.exp_avg(), "exp_avg");
    require_like(parameter, state.exp_avg_sq(), "exp_avg_sq");
    if (options.amsgrad()) require_like(parameter, state.max_exp_avg_sq(), "max_exp_avg_sq");
  });
}

template <class Kernel>
void step_adam(Optimizer& optimizer, OptimizerParamGroup& group) {
  const auto& options = static_cast<const typename Kernel::Options&>(group.options());
  std::map<at::ScalarType, AdamTensors> of_type;
  std::map<std::int64_t, at::Tensor> counters;  // by number of steps
  for (const at::Tensor& parameter : group.params()) {
    if (!parameter.grad().defined()) continue;
    auto& state = begin_step<typename Kernel::State>(optimizer, parameter, options.amsgrad());
    at::Tensor& counter = counters[state.step()];
    if (!counter.defined()) {
      counter = at::scalar_tensor(state.step(),
                                  parameter.options().dtype(at::kFloat).requires_grad(false));
    }
    AdamTensors& tensors = of_type[parameter.scalar_type()];
    tensors.parameters.push_back(parameter);
    tensors.gradients.push_back(parameter.grad().contiguous());
    tensors.exp_avgs.push_back(state.exp_avg());
    tensors.exp_avg_sqs.push_back(state.exp_avg_sq());
    if (options.amsgrad()) tensors.max_exp_avg_sqs.push_back(state.max_exp_avg_sq());
    tensors.steps.push_back(counter);
  }
  const auto [beta1, beta2] = options.betas();
  for (const auto& [type, tensors] : of_type) {
    Kernel::run(tensors.parameters, tensors.gradients, tensors.exp_avgs, tensors.exp_avg_sqs,
                tensors.max_exp_avg_sqs, tensors.steps, options.lr(), beta1, beta2,
                options.weight_decay(), options.eps(), options.amsgrad(), /*maximize=*/false);
  }
}

// --- SGD ---

struct SgdTensors {
  Tensors parameters, gradients, momenta;
};

void check_sgd(Optimizer& optimizer, OptimizerParamGroup& group) {
  using State = torch::optim::SGDParamState;
  const auto& options = static_cast<const torch::optim::SGDOptions&>(group.options());
  check_states<State>(optimizer, group, [&](const at::Tensor& parameter, State& state) {
    if (options.momentum() != 0) {
      require_like(parameter, state.momentum_buffer(), "momentum_buffer");
    }
  });
}

void step_sgd(Optimizer& optimizer, OptimizerParamGroup& group) {
  const auto& options = static_cast<const torch::optim::SGDOptions&>(group.options());
  const bool has_momentum = options.momentum() != 0;
  std::map<std::pair<at::ScalarType, bool>, SgdTensors> of_type;  // bool: the first step
  for (const at::Tensor& parameter : group.params()) {
    if (!parameter.grad().defined()) continue;
    at::Tensor momentum;
    bool is_first = false;
    if (has_momentum) {
      const auto [state, is_new] = state_of<torch::optim::SGDParamState>(optimizer, parameter);
      if (is_new) state.momentum_buffer(at::empty_like(parameter));
      momentum = state.momentum_buffer();
      is_first = is_new;
    }
    SgdTensors& tensors = of_type[{parameter.scalar_type(), is_first}];
    tensors.parameters.push_back(parameter);
    tensors.gradients.push_back(parameter.grad().contiguous());
    if (has_momentum) tensors.momenta.push_back(momentum);
  }
  for (const auto& [kind, tensors] : of_type) {
    at::_fused_sgd_(tensors.parameters, tensors.gradients, tensors.momenta, options.weight_decay(),
                    options.momentum(), options.lr(), options.dampening(), options.nesterov(),
                    /*maximize=*/false, /*is_first_step=*/kind.second);
  }
}

struct FusedStep {
  using OfGroup = void (*)(Optimizer&, OptimizerParamGroup&);
  OfGroup check = nullptr;
  OfGroup step = nullptr;
};

/// Only for these classes: a derived one may override step().
FusedStep fused_step_of(const Optimizer& optimizer) {
  if (typeid(optimizer) == typeid(torch::optim::Adam)) {
    return {check_adam<AdamKernel>, step_adam<AdamKernel>};
  }
  if (typeid(optimizer) == typeid(torch::optim::AdamW)) {
    return {check_adam<AdamWKernel>, step_adam<AdamWKernel>};
  }
  if (typeid(optimizer) == typeid(torch::optim::SGD)) return {check_sgd, step_sgd};
  return {};
}

}  // namespace

bool has_fused_step(const Optimizer& optimizer) { return fused_step_of(optimizer).step != nullptr; }

void fused_step(Optimizer& optimizer) {
  const at::NoGradGuard no_grad;
  const auto [check, step] = fused_step_of(optimizer);
  for (OptimizerParamGroup& group : optimizer.param_groups()) check(optimizer, group);
  for (OptimizerParamGroup& group : optimizer.param_groups()) step(optimizer, group);
}

}  // namespace kolo::train

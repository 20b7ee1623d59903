#include "torch/fused_step.hpp"

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

namespace kolo::tensors {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;
using Tensors = std::vector<at::Tensor>;

/// The gradient as the kernels want it, whose elements lie as those of the parameter.
at::Tensor gradient_of(const at::Tensor& parameter) {
  if (parameter.grad().layout() != at::kStrided) {
    throw InvalidArgument(
        "DistributedOptimizer: fused = true takes dense gradients, and there is a sparse one. Set "
        "sparse_as_dense, or fused = false.");
  }
  return parameter.grad().contiguous();
}

/// Adds a tensor of the state of `parameter` to `all`. The kernels look at no sizes: they walk over
/// it as over the parameter.
void add_state(Tensors& all, const at::Tensor& tensor, const at::Tensor& parameter,
               const char* name) {
  const bool fits = tensor.defined() && tensor.layout() == at::kStrided &&
                    tensor.sizes() == parameter.sizes() && tensor.is_contiguous() &&
                    tensor.scalar_type() == parameter.scalar_type() &&
                    tensor.device() == parameter.device();
  if (!fits) {
    const auto text_of = [](const at::Tensor& which) {
      return which.defined() ? c10::str(which.scalar_type(), " ", which.sizes(), " on ",
                                        which.device(), which.is_contiguous() ? "" : ", not contiguous")
                             : std::string("undefined");
    };
    throw InvalidArgument(std::string("DistributedOptimizer: the optimizer's state has a '") +
                          name + "' that is " + text_of(tensor) + ", of a parameter that is " +
                          text_of(parameter) + ", which fused = true cannot step. Give it the " +
                          "parameter's shape and type.");
  }
  all.push_back(tensor);
}

/// The state of `parameter`, and whether it has only now been made.
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

/// Counts a step; the state before the first is that of Adam.
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
void step_adam(Optimizer& optimizer, OptimizerParamGroup& group) {
  const auto& options = static_cast<const typename Kernel::Options&>(group.options());
  std::map<at::ScalarType, AdamTensors> of_type;
  std::map<std::int64_t, at::Tensor> counters;  // most parameters have taken equally many steps
  for (const at::Tensor& parameter : group.params()) {
    if (!parameter.grad().defined()) continue;
    at::Tensor gradient = gradient_of(parameter);
    auto& state = begin_step<typename Kernel::State>(optimizer, parameter, options.amsgrad());
    at::Tensor& counter = counters[state.step()];
    if (!counter.defined()) {
      counter = at::scalar_tensor(state.step(),
                                  parameter.options().dtype(at::kFloat).requires_grad(false));
    }
    AdamTensors& tensors = of_type[parameter.scalar_type()];
    tensors.parameters.push_back(parameter);
    tensors.gradients.push_back(std::move(gradient));
    add_state(tensors.exp_avgs, state.exp_avg(), parameter, "exp_avg");
    add_state(tensors.exp_avg_sqs, state.exp_avg_sq(), parameter, "exp_avg_sq");
    if (options.amsgrad()) {
      add_state(tensors.max_exp_avg_sqs, state.max_exp_avg_sq(), parameter, "max_exp_avg_sq");
    }
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

void step_sgd(Optimizer& optimizer, OptimizerParamGroup& group) {
  const auto& options = static_cast<const torch::optim::SGDOptions&>(group.options());
  const bool has_momentum = options.momentum() != 0;
  std::map<std::pair<at::ScalarType, bool>, SgdTensors> of_type;  // and of those stepped before
  for (const at::Tensor& parameter : group.params()) {
    if (!parameter.grad().defined()) continue;
    at::Tensor gradient = gradient_of(parameter);
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
    tensors.gradients.push_back(std::move(gradient));
    if (has_momentum) add_state(tensors.momenta, momentum, parameter, "momentum_buffer");
  }
  for (const auto& [kind, tensors] : of_type) {
    at::_fused_sgd_(tensors.parameters, tensors.gradients, tensors.momenta, options.weight_decay(),
                    options.momentum(), options.lr(), options.dampening(), options.nesterov(),
                    /*maximize=*/false, /*is_first_step=*/kind.second);
  }
}

using StepGroup = void (*)(Optimizer&, OptimizerParamGroup&);

/// Of exactly these classes: one that derives from them may step in its own way.
StepGroup step_of(const Optimizer& optimizer) {
  if (typeid(optimizer) == typeid(torch::optim::Adam)) return step_adam<AdamKernel>;
  if (typeid(optimizer) == typeid(torch::optim::AdamW)) return step_adam<AdamWKernel>;
  if (typeid(optimizer) == typeid(torch::optim::SGD)) return step_sgd;
  return nullptr;
}

}  // namespace

bool has_fused_step(const Optimizer& optimizer) { return step_of(optimizer) != nullptr; }

void fused_step(Optimizer& optimizer) {
  const at::NoGradGuard no_grad;
  const StepGroup step = step_of(optimizer);
  for (OptimizerParamGroup& group : optimizer.param_groups()) step(optimizer, group);
}

}  // namespace kolo::tensors

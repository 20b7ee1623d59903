#include "common/fused_optimizers.hpp"

#include <memory>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros_like.h>

namespace examples {
namespace {

using torch::optim::Optimizer;

at::Tensor evaluate(const Optimizer::LossClosure& closure) {
  if (closure == nullptr) return {};
  const at::AutoGradMode enable(true);
  return closure();
}

/// The state of `parameter`, by `make` where it has none yet.
template <class State, class Map, class Make>
State& state_of(Map& states, const at::Tensor& parameter, Make make) {
  auto& slot = states[parameter.unsafeGetTensorImpl()];
  if (slot == nullptr) slot = make();
  return static_cast<State&>(*slot);
}

}  // namespace

at::Tensor FusedAdamW::step(LossClosure closure) {
  const at::NoGradGuard no_grad;
  at::Tensor loss = evaluate(closure);
  for (auto& group : param_groups()) {
    const auto& options = static_cast<torch::optim::AdamWOptions&>(group.options());
    TORCH_CHECK(!options.amsgrad(), "FusedAdamW: amsgrad is not supported");
    std::vector<at::Tensor> parameters, gradients, exp_avgs, exp_avg_sqs, steps;
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      auto& moments = state_of<torch::optim::AdamWParamState>(state(), parameter, [&] {
        auto made = std::make_unique<torch::optim::AdamWParamState>();
        made->exp_avg(at::zeros_like(parameter));
        made->exp_avg_sq(at::zeros_like(parameter));
        made->step(0);
        return made;
      });
      moments.step(moments.step() + 1);
      parameters.push_back(parameter);
      gradients.push_back(parameter.grad());
      exp_avgs.push_back(moments.exp_avg());
      exp_avg_sqs.push_back(moments.exp_avg_sq());
      steps.push_back(at::scalar_tensor(moments.step(), at::kFloat));
    }
    if (parameters.empty()) continue;
    const auto [beta1, beta2] = options.betas();
    at::_fused_adamw_(parameters, gradients, exp_avgs, exp_avg_sqs, {}, steps, options.lr(), beta1,
                      beta2, options.weight_decay(), options.eps(), /*amsgrad=*/false,
                      /*maximize=*/false);
  }
  return loss;
}

at::Tensor FusedSGD::step(LossClosure closure) {
  const at::NoGradGuard no_grad;
  at::Tensor loss = evaluate(closure);
  for (auto& group : param_groups()) {
    const auto& options = static_cast<torch::optim::SGDOptions&>(group.options());
    TORCH_CHECK(options.dampening() == 0, "FusedSGD: dampening is not supported");
    const bool has_momentum = options.momentum() != 0;
    std::vector<at::Tensor> parameters, gradients, momenta;
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      parameters.push_back(parameter);
      gradients.push_back(parameter.grad());
      if (!has_momentum) continue;
      auto& momentum = state_of<torch::optim::SGDParamState>(state(), parameter, [&] {
        auto made = std::make_unique<torch::optim::SGDParamState>();
        made->momentum_buffer(at::zeros_like(parameter));
        return made;
      });
      momenta.push_back(momentum.momentum_buffer());
    }
    if (parameters.empty()) continue;
    at::_fused_sgd_(parameters, gradients, momenta, options.weight_decay(), options.momentum(),
                    options.lr(), /*dampening=*/0, options.nesterov(), /*maximize=*/false,
                    /*is_first_step=*/false);
  }
  return loss;
}

}  // namespace examples

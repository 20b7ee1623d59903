// AdamW8bit and Muon without Kolo's wrapper.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <sstream>
#include <utility>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/extras/adamw_8bit.hpp"
#include "kolo/extras/muon.hpp"

namespace kolo::test::own_optimizers_test {

constexpr std::int64_t kElements = 5000;  // 20 blocks, the last one not full

/// Gradients of very different sizes, which differ between steps.
at::Tensor gradient_of(int step, std::int64_t count, at::ScalarType type = at::kFloat) {
  const at::Tensor i = at::arange(count, at::kDouble);
  return ((i * 0.37 + step).sin() * ((i.remainder(13) - 6) / 2).exp()).to(type);
}

template <class Optimizer>
void take_steps(Optimizer& optimizer, const at::Tensor& parameter, int begin, int end) {
  for (int step = begin; step < end; ++step) {
    parameter.mutable_grad() =
        gradient_of(step, parameter.numel(), parameter.scalar_type()).view(parameter.sizes());
    optimizer.step();
  }
}

at::Tensor parameter_of(std::int64_t count) {
  return (at::arange(count, at::kFloat) * 0.01).cos().requires_grad_();
}

TEST(AdamW8bitTest, Steps_AreNearThoseOfAdamW) {
  const at::Tensor parameter = parameter_of(kElements);
  const at::Tensor exact = parameter_of(kElements);
  AdamW8bit optimizer({parameter}, AdamW8bitOptions(1e-2).weight_decay(0.1));
  torch::optim::AdamW adamw({exact}, torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
  take_steps(optimizer, parameter, 0, 20);
  take_steps(adamw, exact, 0, 20);
  const at::Tensor before = parameter_of(kElements);
  const double moved = (exact - before).norm().item<double>();
  EXPECT_LT((parameter - exact).norm().item<double>(), 0.15 * moved);
  EXPECT_TRUE(parameter.isfinite().all().item<bool>());
}

TEST(AdamW8bitTest, State_HasTwoBytesAnElement) {
  const at::Tensor parameter = parameter_of(kElements);
  AdamW8bit optimizer({parameter});
  take_steps(optimizer, parameter, 0, 1);
  const auto& state = static_cast<const AdamW8bitParamState&>(
      *optimizer.state().at(parameter.unsafeGetTensorImpl()));
  const std::size_t bytes = state.exp_avg().nbytes() + state.exp_avg_sq().nbytes() +
                            state.exp_avg_max().nbytes() + state.exp_avg_sq_max().nbytes();
  EXPECT_EQ(bytes, 2 * kElements + 2 * 20 * sizeof(float));
  EXPECT_EQ(state.exp_avg().sizes(), parameter.sizes());
}

TEST(AdamW8bitTest, SmallParameters_StepAsAdamW) {
  const at::Tensor parameter = parameter_of(100);
  const at::Tensor exact = parameter_of(100);
  AdamW8bit optimizer({parameter}, AdamW8bitOptions(1e-2));
  torch::optim::AdamW adamw({exact}, torch::optim::AdamWOptions(1e-2));
  take_steps(optimizer, parameter, 0, 5);
  take_steps(adamw, exact, 0, 5);
  EXPECT_LT((parameter - exact).abs().max().item<double>(), 1e-6);
}

TEST(AdamW8bitTest, ZeroGradients_LeaveFiniteValues) {
  const at::Tensor parameter = parameter_of(kElements);
  AdamW8bit optimizer({parameter}, AdamW8bitOptions(1e-2).weight_decay(0.0));
  for (int step = 0; step < 3; ++step) {
    parameter.mutable_grad() = at::zeros_like(parameter);
    optimizer.step();
  }
  EXPECT_TRUE(at::equal(parameter, parameter_of(kElements)));
}

template <class Optimizer>
void expect_continues(const std::function<Optimizer(const at::Tensor&)>& make,
                      const at::Tensor& start) {
  const at::Tensor whole = start.clone().requires_grad_();
  Optimizer one = make(whole);
  take_steps(one, whole, 0, 6);

  const at::Tensor parameter = start.clone().requires_grad_();
  Optimizer first = make(parameter);
  take_steps(first, parameter, 0, 3);
  std::stringstream stream;
  torch::save(first, stream);
  Optimizer second = make(parameter);
  torch::load(second, stream);
  take_steps(second, parameter, 3, 6);
  EXPECT_TRUE(at::equal(parameter, whole));
}

TEST(OwnOptimizersTest, SavedState_Continues) {
  expect_continues<AdamW8bit>([](const at::Tensor& p) { return AdamW8bit({p}); },
                              parameter_of(kElements).detach());
  expect_continues<Muon>([](const at::Tensor& p) { return Muon({p}); },
                         parameter_of(60).detach().view({6, 10}));
  expect_continues<Muon>([](const at::Tensor& p) { return Muon({p}); }, parameter_of(60).detach());
}

TEST(OwnOptimizersTest, WrongOptions_AreRefused) {
  const at::Tensor parameter = parameter_of(4);
  EXPECT_THROW(AdamW8bit({parameter}, AdamW8bitOptions(-1.0)), c10::Error);
  EXPECT_THROW(AdamW8bit({parameter}, AdamW8bitOptions(1.0).betas({1.0, 0.9})), c10::Error);
  EXPECT_THROW(Muon({parameter}, MuonOptions(1.0).momentum(1.0)), c10::Error);
  EXPECT_THROW(Muon({parameter}, MuonOptions(1.0).ns_steps(0)), c10::Error);
}

/// The update of a first step without momentum and decay.
at::Tensor muon_update(const at::Tensor& gradient, MuonOptions options) {
  const at::Tensor parameter = at::zeros_like(gradient).requires_grad_();
  Muon optimizer({parameter}, options.weight_decay(0.0).momentum(0.0));
  parameter.mutable_grad() = gradient;
  optimizer.step();
  return -parameter.detach();
}

TEST(MuonTest, Updates_HaveTheGradientsSingularVectors_AndValuesNearOne) {
  for (const auto& [rows, columns] : {std::pair{6, 6}, {8, 3}, {3, 8}, {1, 5}}) {
    const at::Tensor gradient = gradient_of(1, rows * columns, at::kDouble).view({rows, columns});
    const at::Tensor update = muon_update(gradient, MuonOptions(1.0));
    const auto [u, s, v] = at::linalg_svd(gradient, /*full_matrices=*/false);
    const at::Tensor inner = at::mm(at::mm(u.t(), update), v.t());
    const double scale = std::sqrt(std::max(1.0, static_cast<double>(rows) / columns));
    const at::Tensor values = inner.diagonal() / scale;
    const at::Tensor is_large = s > 0.02 * s.norm();
    EXPECT_TRUE(((values - 1.0).abs() < 0.35).logical_or(is_large.logical_not()).all().item<bool>())
        << values;
    EXPECT_LT((inner - at::diag(inner.diagonal())).abs().max().item<double>(), 1e-10);
  }
}

TEST(MuonTest, MatchesAdamw_ScalesByTheLongerSide) {
  const at::Tensor gradient = gradient_of(1, 12, at::kDouble).view({3, 4});
  const at::Tensor one = muon_update(gradient, MuonOptions(1.0));
  const at::Tensor scaled = muon_update(gradient, MuonOptions(0.5).matches_adamw(true));
  EXPECT_LT((scaled - 0.5 * 0.2 * 2.0 * one).abs().max().item<double>(), 1e-12);
}

TEST(MuonTest, Momentum_IsNesterovs) {
  const at::Tensor g0 = gradient_of(0, 12, at::kDouble).view({3, 4});
  const at::Tensor g1 = gradient_of(1, 12, at::kDouble).view({3, 4});
  const at::Tensor parameter = at::zeros_like(g0).requires_grad_();
  Muon optimizer({parameter}, MuonOptions(1.0).weight_decay(0.0).momentum(0.9));
  parameter.mutable_grad() = g0;
  optimizer.step();
  const at::Tensor first = parameter.detach().clone();
  parameter.mutable_grad() = g1;
  optimizer.step();
  const at::Tensor momentum = 0.9 * 0.1 * g0 + 0.1 * g1;
  const at::Tensor expected = muon_update(0.1 * g1 + 0.9 * momentum, MuonOptions(1.0));
  EXPECT_LT((first - parameter.detach() - expected).abs().max().item<double>(), 1e-12);
}

}  // namespace kolo::test::own_optimizers_test

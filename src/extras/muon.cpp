#include "kolo/extras/muon.hpp"

#include <algorithm>
#include <cmath>
#include <concepts>
#include <type_traits>

#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include "extras/archived_fields.hpp"

namespace kolo {
namespace {

template <class Options, class Visit>
  requires std::same_as<std::remove_const_t<Options>, MuonOptions>
void visit_fields(Options& options, const Visit& visit) {
  visit("lr", options.lr());
  visit("weight_decay", options.weight_decay());
  visit("orthogonalizes", options.orthogonalizes());
  visit("momentum", options.momentum());
  visit("nesterov", options.nesterov());
  visit("ns_steps", options.ns_steps());
  visit("matches_adamw", options.matches_adamw());
  visit("betas", options.betas());
  visit("eps", options.eps());
}
template <class State, class Visit>
  requires std::same_as<std::remove_const_t<State>, MuonParamState>
void visit_fields(State& state, const Visit& visit) {
  visit("momentum_buffer", state.momentum_buffer());
  visit("step", state.step());
  visit("exp_avg", state.exp_avg());
  visit("exp_avg_sq", state.exp_avg_sq());
}

// The quintic iteration of the authors: fast, and singular values end near 1, not at it.
constexpr double kA = 3.4445;
constexpr double kB = -4.7750;
constexpr double kC = 2.0315;
constexpr double kSmallest = 1e-7;

/// The nearest matrix, roughly, whose singular values are all 1.
at::Tensor orthogonalized(const at::Tensor& matrix, std::int64_t steps) {
  const bool is_tall = matrix.size(0) > matrix.size(1);
  const at::ScalarType narrow = matrix.is_cpu() ? at::kFloat : at::kBFloat16;
  at::Tensor x = matrix.to(matrix.scalar_type() == at::kDouble ? at::kDouble : narrow);
  if (is_tall) x = x.t();
  x = x / x.norm().clamp_min(kSmallest);
  for (std::int64_t i = 0; i < steps; ++i) {
    const at::Tensor gram = at::mm(x, x.t());
    const at::Tensor polynomial = at::addmm(gram, gram, gram, kB, kC);
    x = at::addmm(x, polynomial, x, kA, 1.0);
  }
  return (is_tall ? x.t() : x).to(matrix.scalar_type());
}

double rate_of(const at::Tensor& matrix, const MuonOptions& options) {
  const auto rows = static_cast<double>(matrix.size(0));
  const auto columns = static_cast<double>(matrix.size(1));
  if (options.matches_adamw()) return options.lr() * 0.2 * std::sqrt(std::max(rows, columns));
  return options.lr() * std::sqrt(std::max(1.0, rows / columns));
}

void check(const MuonOptions& options) {
  const auto [beta1, beta2] = options.betas();
  TORCH_CHECK(options.lr() >= 0.0, "Muon: lr is ", options.lr(), ", it must be 0 or more");
  TORCH_CHECK(options.weight_decay() >= 0.0, "Muon: weight_decay is ", options.weight_decay(),
              ", it must be 0 or more");
  TORCH_CHECK(options.momentum() >= 0.0 && options.momentum() < 1.0, "Muon: momentum is ",
              options.momentum(), ", it must be in [0, 1)");
  TORCH_CHECK(options.ns_steps() > 0, "Muon: ns_steps is ", options.ns_steps(),
              ", it must be 1 or more");
  TORCH_CHECK(beta1 >= 0.0 && beta1 < 1.0 && beta2 >= 0.0 && beta2 < 1.0, "Muon: betas are ", beta1,
              " and ", beta2, ", they must be in [0, 1)");
  TORCH_CHECK(options.eps() >= 0.0, "Muon: eps is ", options.eps(), ", it must be 0 or more");
}

}  // namespace

void MuonOptions::serialize(torch::serialize::InputArchive& archive) {
  visit_fields(*this, extras::FieldReader{archive});
}
void MuonOptions::serialize(torch::serialize::OutputArchive& archive) const {
  visit_fields(*this, extras::FieldWriter{archive});
}
void MuonParamState::serialize(torch::serialize::InputArchive& archive) {
  visit_fields(*this, extras::FieldReader{archive});
}
void MuonParamState::serialize(torch::serialize::OutputArchive& archive) const {
  visit_fields(*this, extras::FieldWriter{archive});
}

Muon::Muon(const std::vector<torch::optim::OptimizerParamGroup>& groups,
           const MuonOptions& defaults)
    : Optimizer(groups, std::make_unique<MuonOptions>(defaults)) {
  for (auto& group : param_groups()) check(static_cast<const MuonOptions&>(group.options()));
}

at::Tensor Muon::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode enable(true);
    loss = closure();
  }
  const at::NoGradGuard no_grad;
  for (auto& group : param_groups()) {
    const auto& options = static_cast<const MuonOptions&>(group.options());
    for (at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      TORCH_CHECK(!parameter.grad().is_sparse() && !parameter.is_complex(),
                  "Muon takes neither sparse gradients nor complex parameters");
      parameter.mul_(1.0 - options.lr() * options.weight_decay());
      const bool is_matrix = parameter.dim() == 2 && options.orthogonalizes();
      is_matrix ? step_matrix(parameter, options) : step_adamw(parameter, options);
    }
  }
  return loss;
}

void Muon::step_matrix(at::Tensor& parameter, const MuonOptions& options) {
  at::Tensor& momentum = state_for(parameter).momentum_buffer();
  if (!momentum.defined()) momentum = at::zeros_like(parameter);
  const at::Tensor gradient = parameter.grad().to(parameter.scalar_type());
  momentum.lerp_(gradient, 1.0 - options.momentum());
  const at::Tensor update =
      options.nesterov() ? gradient.lerp(momentum, options.momentum()) : momentum;
  parameter.add_(orthogonalized(update, options.ns_steps()), -rate_of(parameter, options));
}

void Muon::step_adamw(at::Tensor& parameter, const MuonOptions& options) {
  MuonParamState& state = state_for(parameter);
  if (!state.exp_avg().defined()) {
    state.exp_avg(at::zeros_like(parameter));
    state.exp_avg_sq(at::zeros_like(parameter));
  }
  state.step(state.step() + 1);
  const auto [beta1, beta2] = options.betas();
  const auto steps = static_cast<double>(state.step());
  const at::Tensor gradient = parameter.grad().to(parameter.scalar_type());
  state.exp_avg().lerp_(gradient, 1.0 - beta1);
  state.exp_avg_sq().mul_(beta2).addcmul_(gradient, gradient, 1.0 - beta2);
  const double correction = std::sqrt(1.0 - std::pow(beta2, steps));
  const at::Tensor scale = (state.exp_avg_sq().sqrt() / correction).add_(options.eps());
  parameter.addcdiv_(state.exp_avg(), scale, -options.lr() / (1.0 - std::pow(beta1, steps)));
}

MuonParamState& Muon::state_for(const at::Tensor& parameter) {
  auto& state = this->state()[parameter.unsafeGetTensorImpl()];
  if (state == nullptr) state = std::make_unique<MuonParamState>();
  return static_cast<MuonParamState&>(*state);
}

void Muon::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<MuonParamState, MuonOptions>(archive, *this);
}
void Muon::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<MuonParamState, MuonOptions>(archive, *this);
}

}  // namespace kolo

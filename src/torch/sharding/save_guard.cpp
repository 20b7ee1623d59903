#include "torch/sharding/save_guard.hpp"

#include <memory>

#include <ATen/ops/empty.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "kolo/error.hpp"

namespace kolo::tensors {
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
        "DistributedOptimizer: torch::save of the wrapped optimizer would write this rank's part "
        "of the state, which the ranks have divided. Call save(folder) or save_full_state(file) of "
        "the DistributedOptimizer.");
  }
};

std::unique_ptr<torch::optim::OptimizerParamState> guard_for(torch::optim::Optimizer& optimizer) {
  using namespace torch::optim;
  if (dynamic_cast<SGD*>(&optimizer)) return std::make_unique<GuardState<SGDParamState>>();
  if (dynamic_cast<Adam*>(&optimizer)) return std::make_unique<GuardState<AdamParamState>>();
  if (dynamic_cast<AdamW*>(&optimizer)) return std::make_unique<GuardState<AdamWParamState>>();
  if (dynamic_cast<RMSprop*>(&optimizer)) return std::make_unique<GuardState<RMSpropParamState>>();
  if (dynamic_cast<Adagrad*>(&optimizer)) return std::make_unique<GuardState<AdagradParamState>>();
  return nullptr;
}

}  // namespace

SaveGuard::SaveGuard(torch::optim::Optimizer& optimizer) : optimizer_(optimizer) {
  if (auto state = guard_for(optimizer)) optimizer.state()[this] = std::move(state);
}

SaveGuard::~SaveGuard() { optimizer_.state().erase(this); }

}  // namespace kolo::tensors

#include "torch/wrapped/save_guard.hpp"

#include <memory>

#include <ATen/ops/empty.h>

#include "kolo/error.hpp"
#include "torch/wrapped/libtorch_classes.hpp"

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

}  // namespace kolo::tensors

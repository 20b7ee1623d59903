#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "kolo/torch/distributed_optimizer.hpp"
#include "torch/buckets/gradient_buckets.hpp"
#include "torch/reduction/step_phase.hpp"

namespace kolo::tensors {

/// Whether a backward() is running. Autograd may report its end after the optimizer is destroyed.
class BackwardPass {
 public:
  bool is_running() const { return *is_running_; }
  void begin() { *is_running_ = true; }
  void end() { *is_running_ = false; }
  std::shared_ptr<bool> flag() const { return is_running_; }

 private:
  std::shared_ptr<bool> is_running_ = std::make_shared<bool>(false);
};

/// State of the current step that the reducers of one optimizer share.
struct StepState {
  using Clock = std::chrono::steady_clock;

  StepPhases phases;
  BackwardPass backward;
  int no_sync = 0;        ///< guards alive
  bool is_active = true;  ///< this rank has not joined
  int active_ranks = 0;   ///< in this step's reductions, of a sharded optimizer
  PassKinds own_passes;   ///< of this rank since the last step
  PassKinds all_passes;   ///< of all ranks, according to this step's reductions
  /// Of what ranks do alike, see RankComparison; none if there is one rank.
  std::optional<std::uint32_t> digest;
  bool digests_differ = false;  ///< according to this step's reductions
  /// The current divisor of losses of backward(loss_sum, count), equal on all ranks.
  std::optional<double> loss_reference;
  Clock::time_point first_gradient{};
  DistributedOptimizer::StepTimes times;

  RankFlags flags() const { return {is_active, own_passes, digest}; }
  double seconds_until(Clock::time_point point) const {
    return std::chrono::duration<double>(point - first_gradient).count();
  }
  void start_clock() {
    if (first_gradient == Clock::time_point{}) first_gradient = Clock::now();
  }
};

}  // namespace kolo::tensors

#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>

#include <torch/csrc/autograd/graph_task.h>

#include "kolo/torch/distributed_optimizer.hpp"
#include "torch/buckets/gradient_buckets.hpp"
#include "torch/reduction/step_phase.hpp"

namespace kolo::tensors {

/// Follows the program's calls of backward(). Autograd does not report the end of one that throws.
class BackwardPass {
 public:
  /// Called in backward(): whether this is the first call in it.
  bool is_first_call() {
    const int task = torch::autograd::get_current_graph_task_id();
    return std::exchange(task_, task) != task;
  }
  void begin() {
    has_failed_ = has_failed_ || is_running_;
    is_running_ = true;
  }
  /// `is_pass`: not under no_sync().
  void end(bool is_pass) {
    is_running_ = false;
    ++ended_;
    if (is_pass) ++passes_;
  }
  std::uint64_t ended() const { return ended_; }
  /// Passes that have ended since the last step.
  int passes() const { return passes_; }
  /// Whether one has thrown since the last step. Also true if one runs within another.
  bool has_failed() const { return has_failed_; }
  void restart() {
    has_failed_ = is_running_ = false;
    passes_ = 0;
  }

 private:
  int task_ = -1;
  bool is_running_ = false;
  bool has_failed_ = false;
  std::uint64_t ended_ = 0;
  int passes_ = 0;
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

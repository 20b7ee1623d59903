#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <torch/csrc/autograd/graph_task.h>

#include "kolo/torch/distributed_optimizer.hpp"
#include "train/buckets/gradient_buckets.hpp"

namespace kolo::train {

/// The state of a training step on this rank.
enum class StepPhase : std::uint8_t {
  Accumulating,  ///< gradients arrive, no bucket is in flight
  Reducing,      ///< some buckets are in flight
  Synchronized,  ///< all gradients are reduced; no more may arrive before step() or zero_grad()
  Failed,        ///< backward() has thrown the error of a bucket; others may be in flight
};

/// Holds the phase. TrainingEngine and the reductions report its transitions.
class StepPhases {
 public:
  StepPhase current() const { return phase_; }
  /// Whether buckets have been submitted and not waited for.
  bool is_in_flight() const { return phase_ == StepPhase::Reducing || phase_ == StepPhase::Failed; }

  void submit() {  // a bucket
    if (phase_ == StepPhase::Accumulating) phase_ = StepPhase::Reducing;
  }
  void fail() { phase_ = StepPhase::Failed; }
  /// All buckets have completed.
  void finish(bool has_succeeded) {
    phase_ = has_succeeded ? StepPhase::Synchronized : StepPhase::Accumulating;
  }
  /// After step(), or when gradients are discarded.
  void restart() { phase_ = StepPhase::Accumulating; }

 private:
  StepPhase phase_ = StepPhase::Accumulating;
};

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
  /// Whether one has begun that has not ended: at the first gradient of the next, it has thrown.
  bool is_running() const { return is_running_; }
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

/// The kinds of backward passes that gradients come from.
struct PassKinds {
  bool counted = false;    ///< of DistributedOptimizer::backward(), with a count
  bool uncounted = false;  ///< of at::Tensor::backward()
};

/// State of the current step that the reducers of one optimizer share.
struct StepState {
  using Clock = std::chrono::steady_clock;

  StepPhases phases;
  BackwardPass backward;
  int no_sync = 0;                ///< guards alive
  bool is_active = true;          ///< this rank has not joined
  std::vector<int> joined_ranks;  ///< in this step, of a sharded optimizer, see StepProtocol
  PassKinds own_passes;           ///< of this rank since the last step
  bool has_any_counted = false;   ///< a pass of any rank, according to this step's reductions
  /// Of what ranks do alike, see RankComparison; none if there is one rank.
  std::optional<std::uint32_t> digest;
  bool digests_differ = false;  ///< according to this step's reductions
  /// The current divisor of losses of backward(loss_sum, count), equal on all ranks.
  std::optional<double> loss_reference;
  Clock::time_point first_gradient{};
  DistributedOptimizer::StepTimes times;

  RankFlags flags() const { return {is_active, is_active && own_passes.counted, digest}; }
  double seconds_until(Clock::time_point point) const {
    return std::chrono::duration<double>(point - first_gradient).count();
  }
  void start_clock() {
    if (first_gradient == Clock::time_point{}) first_gradient = Clock::now();
  }
};

}  // namespace kolo::train

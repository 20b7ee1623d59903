#pragma once

#include <cstdint>

namespace kolo::tensors {

/// The state of a training step on this rank.
enum class StepPhase : std::uint8_t {
  Accumulating,  ///< gradients arrive, no bucket is in flight
  Reducing,      ///< some buckets are in flight
  Synchronized,  ///< all gradients are reduced; no more may arrive before step() or zero_grad()
  Failed,        ///< backward() has thrown the error of a bucket; others may be in flight
};

/// Calls that are not allowed in every phase.
enum class StepCall : std::uint8_t { Join, Load, RegisterBucketHook, LocalStep };

/// Holds the phase and decides which calls it allows. TrainingEngine and the reductions report its
/// transitions.
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

  /// Throws InvalidArgument, naming what to call first, if the phase does not allow `call`.
  void require(StepCall call) const;

 private:
  StepPhase phase_ = StepPhase::Accumulating;
};

}  // namespace kolo::tensors

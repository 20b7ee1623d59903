#pragma once

#include <cstdint>

namespace kolo::tensors {

/// Where a training step stands on this rank.
enum class StepPhase : std::uint8_t {
  Accumulating,  ///< gradients arrive, no bucket is being reduced
  Reducing,      ///< some buckets are being reduced
  Synchronized,  ///< all gradients are reduced; no more may arrive before step() or zero_grad()
  Failed,        ///< backward() has thrown the error of a reduction, others may still run
};

/// Calls of a program that are not allowed in every phase.
enum class StepCall : std::uint8_t { Join, Load, RegisterBucketHook, LocalStep };

/// The phase of a step, and the only place that knows which transitions and calls there are.
class StepPhases {
 public:
  StepPhase current() const { return phase_; }
  /// Whether a bucket has been submitted and not been waited for.
  bool is_in_flight() const { return phase_ == StepPhase::Reducing || phase_ == StepPhase::Failed; }

  void submit() {  // a bucket
    if (phase_ == StepPhase::Accumulating) phase_ = StepPhase::Reducing;
  }
  void fail() { phase_ = StepPhase::Failed; }
  /// Nothing is in flight any more.
  void finish(bool has_succeeded) {
    phase_ = has_succeeded ? StepPhase::Synchronized : StepPhase::Accumulating;
  }
  /// After step(), or where gradients were thrown away.
  void restart() { phase_ = StepPhase::Accumulating; }

  /// Throws InvalidArgument, which says what to call first, where the phase does not allow `call`.
  void require(StepCall call) const;

 private:
  StepPhase phase_ = StepPhase::Accumulating;
};

}  // namespace kolo::tensors

#pragma once

#include <cstddef>
#include <exception>
#include <memory>

#include "torch/reduction/arrivals.hpp"
#include "torch/reduction/step_reductions.hpp"

namespace kolo::tensors {

/// Decides when gradients may be copied into a bucket and when a bucket is submitted, which depends
/// on how buckets share memory.
class BucketPipeline {
 public:
  virtual ~BucketPipeline() = default;

  /// Whether a gradient of the bucket may be copied into it on arrival. Completes the bucket that
  /// held the memory before where that does not block; throws its error.
  virtual bool is_writable(std::size_t bucket) = 0;
  /// All gradients of the bucket have arrived: submits what can be submitted now. Throws the error
  /// of a bucket that had to be completed before.
  virtual void bucket_arrived(std::size_t bucket) = 0;
  /// Submits all other buckets of the step.
  virtual void submit_rest() = 0;
  /// Begins a new step. Returns the first error of the buckets that were completed meanwhile.
  virtual std::exception_ptr restart() = 0;
};

/// Every bucket has memory of its own, and is submitted when its gradients have arrived.
std::unique_ptr<BucketPipeline> make_own_memory_pipeline(StepReductions& reductions);

/// Buckets take turns in the memory of `slots` of them, and all ranks submit them in their order,
/// `passes` times in a step. Gradients are copied on arrival if the slot's previous bucket has
/// completed; otherwise once all of them have arrived. backward() waits when it is further ahead.
std::unique_ptr<BucketPipeline> make_shared_slots_pipeline(StepReductions& reductions,
                                                           Arrivals& arrivals, std::size_t slots,
                                                           int passes);

}  // namespace kolo::tensors

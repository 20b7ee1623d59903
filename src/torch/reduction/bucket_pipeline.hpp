#pragma once

#include <cstddef>
#include <exception>
#include <memory>

#include "torch/reduction/arrivals.hpp"
#include "torch/reduction/step_reductions.hpp"

namespace kolo::tensors {

/// Decides when gradients may be copied into a bucket and when buckets are submitted.
class BucketPipeline {
 public:
  virtual ~BucketPipeline() = default;

  /// Whether gradients may be moved into the bucket on arrival. Completes the slot's previous
  /// bucket if that does not block; throws its error.
  virtual bool is_writable(std::size_t bucket) = 0;
  /// All gradients of the bucket have arrived: submits the buckets that can be submitted now.
  /// Throws the error of a bucket that had to be completed first.
  virtual void bucket_arrived(std::size_t bucket) = 0;
  /// A pass has ended. If another rank's backward() may wait for buckets of this rank, submits
  /// those that no gradient completes any more, since the program may wait for that rank.
  virtual void pass_ended() = 0;
  /// Submits all other buckets of the step.
  virtual void submit_rest() = 0;
  /// Begins a new step. Returns the first error of the buckets that it completed in the last one.
  virtual std::exception_ptr restart() = 0;
};

/// Every bucket has its own memory and is submitted when all its gradients have arrived.
std::unique_ptr<BucketPipeline> make_own_memory_pipeline(StepReductions& reductions);

/// Buckets share slots of memory, and all ranks submit them in the order of the layout: once in a
/// step of `passes` passes or, with `by_pass`, in each pass. On the CPU, if they are submitted only
/// once, gradients are moved into the bucket on arrival if the slot's previous bucket has
/// completed; otherwise when the bucket is submitted. A backward() that is further ahead waits,
/// unless `waits` is false: then gradients stay in their own memory until the slot's previous
/// bucket has completed.
std::unique_ptr<BucketPipeline> make_shared_slots_pipeline(StepReductions& reductions,
                                                           Arrivals& arrivals, int passes,
                                                           bool by_pass, bool waits);

}  // namespace kolo::tensors

#pragma once

#include <cstddef>
#include <exception>
#include <memory>

#include "train/gradients/arrivals.hpp"
#include "train/gradients/step_reductions.hpp"

namespace kolo::train {

/// Decides when gradients may be copied into a bucket and when buckets are submitted.
///
/// A pipeline has neither a thread nor a clock: it acts only when autograd's hooks call it during
/// backward(), or when step(), synchronize() or zero_grad() do. A bucket can wait for one of these
/// calls, not for a time.
///
/// Guards hold from submission on: the bucket's gradients refuse access, a further one ends
/// backward() with an error unless each pass is reduced, and call_rules() forbid join() and load().
/// Before it, the program may still read, change and drop the gradients.
class BucketPipeline {
 public:
  virtual ~BucketPipeline() = default;

  /// Whether gradients may be moved into the bucket on arrival; asked for each one on a CPU, never
  /// on a GPU. Completes the slot's previous bucket if that does not block; throws its error.
  virtual bool is_writable(std::size_t bucket) = 0;
  /// All gradients of the bucket have arrived: submits the buckets that can be submitted now.
  /// Throws the error of a bucket that had to be completed first. Called again for one that is not
  /// submitted yet, if the program drops a gradient of it, and another one arrives.
  virtual void bucket_arrived(std::size_t bucket) = 0;
  /// A pass has ended: submits buckets that no gradient completes any more, since another rank's
  /// backward() may wait for them.
  virtual void pass_ended() = 0;
  /// Submits all other buckets of the step.
  virtual void submit_rest() = 0;
  /// The same as far as that does not wait, for a rank without gradients of its own. Returns
  /// whether any are left.
  virtual bool submit_without_wait() = 0;
  /// Begins a new step. Returns the first error of the buckets that it completed in the last one.
  virtual std::exception_ptr restart() = 0;
};

/// Every bucket has its own memory and is submitted when all its gradients have arrived. Not only
/// with Shard::None: with Shard::Optimizer, and until Shard::Gradients has sharded them, too.
std::unique_ptr<BucketPipeline> make_own_memory_pipeline(StepReductions& reductions);

/// For sharded gradients. Buckets share slots of memory, and all ranks submit them in the order of
/// the layout: once in a step of `passes` passes or, with `by_pass`, in each pass. On the CPU, if
/// they are submitted only once, gradients are moved into the bucket on arrival if the slot's
/// previous bucket has completed; otherwise when the bucket is submitted. A backward() that is
/// further ahead waits for that, but, in all its waits, for at most kPatience, and not at all
/// unless `waits`: another rank may itself wait for this one in its own backward(), for another
/// optimizer or in an operation of the program. Then gradients stay in their own memory meanwhile.
///
/// With `by_pass`, the end of a pass waits for its buckets, so that no pass adds to the gradients
/// of another.
std::unique_ptr<BucketPipeline> make_shared_slots_pipeline(StepReductions& reductions,
                                                           Arrivals& arrivals, int passes,
                                                           bool by_pass, bool waits);

}  // namespace kolo::train

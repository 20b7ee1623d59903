#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "train/buckets/bucket_plan.hpp"
#include "train/gradients/step_reductions.hpp"

namespace kolo::train {

/// Counts the gradients that have arrived since the last step and those that buckets wait for.
class Arrivals {
 public:
  /// A bucket is complete once each of its parameters has received `passes` gradients; with
  /// `by_pass`, one each, and `take` makes it wait for the next pass.
  Arrivals(const std::vector<Bucket>& buckets, std::size_t parameters, int passes, bool by_pass);

  /// Counts a gradient. Returns whether its bucket is complete.
  bool add(std::size_t parameter);
  /// The bucket has been submitted with the gradients that had arrived. The `present` ones include
  /// those that do not count, which have arrived under no_sync().
  void take(std::size_t bucket, const std::function<bool(std::size_t)>& present);
  /// The parameter's gradient was dropped before its bucket was submitted.
  void drop(std::size_t parameter);
  /// Begins a new step.
  void restart();

  std::size_t bucket_of(std::size_t parameter) const { return bucket_of_[parameter]; }
  int count(std::size_t parameter) const { return counts_[parameter]; }
  /// Whether a gradient has arrived that counts, or that its bucket was submitted with.
  bool has(std::size_t parameter) const { return count(parameter) > 0 || is_taken_[parameter]; }
  bool any() const;
  bool is_complete(std::size_t bucket) const { return missing_[bucket] <= 0; }
  /// Whether the parameter has a gradient that has not been submitted.
  bool is_pending(std::size_t parameter) const { return is_pending_[parameter]; }

 private:
  int expected(std::size_t bucket) const;

  std::vector<std::vector<std::size_t>> members_;  // of each bucket
  std::vector<std::size_t> bucket_of_;             // of each parameter
  int passes_;
  bool by_pass_;
  std::vector<int> missing_;      // of each bucket: gradients that it waits for
  std::vector<int> counts_;       // of each parameter
  std::vector<bool> is_taken_;    // of each parameter: with its bucket
  std::vector<bool> is_pending_;  // of each parameter
};

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

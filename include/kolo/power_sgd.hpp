#pragma once

#include <cstdint>
#include <memory>

#include "kolo/bucket_hook.hpp"
#include "kolo/process_set.hpp"

namespace kolo::tensors {
class PowerSgdReducer;
}

#pragma GCC visibility push(default)
namespace kolo {

/// Options of a PowerSgd; the same on all ranks, or its constructor throws. Names and defaults are
/// those of PowerSGDState of DDP's communication hooks.
struct PowerSgdOptions {
  int rank = 1;  ///< of the approximations: columns of P and Q
  /// Steps of the optimizer before which gradients are reduced without compression: those of the
  /// first ones are the least well approximated.
  std::int64_t start_step = 1000;
  /// n × m gradients are compressed if n m is at least so many times (n + m) rank.
  double min_compression_rate = 2.0;
  bool error_feedback = true;  ///< what an approximation leaves out is added to the next gradient
  bool warm_start = true;      ///< the next approximation starts from this Q, not from a random one
  std::uint64_t seed = 0;      ///< of random Qs
  ProcessSet* process_set = nullptr;  ///< that of the optimizer; null: the world
};

/// Reduces gradients of matrices as low-rank approximations: PowerSGD (Vogels et al., 2019), with
/// the semantics of DDP's hook.
///
///   kolo::DistributedOptimizer optimizer(adamw, *model);
///   kolo::PowerSgd power_sgd({.rank = 2, .start_step = 100});
///   optimizer.register_bucket_hook(power_sgd.hook());
///
/// The gradient of a parameter [n, ...] counts as a matrix M of n rows and m columns. Each rank
/// adds the residual of its last approximation, and one step of power iteration follows: the
/// average of P = M Q over ranks, whose columns are made orthonormal; the average of Q = M^T P; the
/// reduced gradient P Q^T, with the same bits on all ranks. A rank sends (n + m) rank elements
/// where it would send n m. All other gradients of a bucket are averaged as they are, in one
/// operation.
///
/// P and Q are float32, or float64 for float64 gradients; complex gradients are not compressed, and
/// one rank alone compresses nothing. Gradients that are not finite come out as NaN on all ranks,
/// as a GradScaler expects. The optimizer keeps residuals, in float32 (BucketHook::error_feedback):
/// steps that are not used leave them as they were. Checkpoints hold residuals and Qs; register the
/// hook before load().
///
/// The optimizer's `op`, `compression` and `join_divisor` have no effect: PowerSGD averages over
/// all ranks of the set, and those that have joined count as zeros. With shard = None only, as
/// every hook.
class PowerSgd {
 public:
  using Options = PowerSgdOptions;

  /// Collective over the set, and blocking.
  /// @throws InvalidArgument on all ranks if on any an option is out of range
  /// @throws MismatchError on all ranks if options differ
  explicit PowerSgd(const Options& options = {});

  /// What DistributedOptimizer::register_bucket_hook takes. It shares the state of this object,
  /// which need not outlive it.
  BucketHook hook() const;

 private:
  std::shared_ptr<tensors::PowerSgdReducer> reducer_;
};

}  // namespace kolo
#pragma GCC visibility pop

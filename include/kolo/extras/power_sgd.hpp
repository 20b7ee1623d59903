#pragma once

#include <cstdint>
#include <memory>

#include "kolo/process_set.hpp"
#include "kolo/torch/bucket_hook.hpp"

namespace kolo::extras {
class PowerSgdReducer;
}

#pragma GCC visibility push(default)
namespace kolo {

/// Options of a PowerSgd; the same on all ranks, or the constructor throws. Names and defaults are
/// those of PowerSGDState in DDP's communication hooks.
struct PowerSgdOptions {
  int rank = 1;  ///< of the approximation: columns of P and Q
  /// Number of optimizer steps before compression starts: a low rank approximates the first
  /// gradients worst.
  std::int64_t start_step = 1000;
  /// n × m gradients are compressed if n m is at least this many times (n + m) rank.
  double min_compression_rate = 2.0;
  bool error_feedback = true;         ///< adds the approximation's error to the next gradient
  bool warm_start = true;             ///< starts from the Q of the last step, not from a random one
  std::uint64_t seed = 0;             ///< of random Qs
  ProcessSet* process_set = nullptr;  ///< the optimizer's; null: the world
};

/// Reduces gradients of matrices as low-rank approximations: PowerSGD (Vogels et al., 2019), with
/// the semantics of DDP's hook.
///
///   kolo::DistributedOptimizer optimizer(adamw, *model);
///   kolo::PowerSgd power_sgd({.rank = 2, .start_step = 100});
///   optimizer.register_bucket_hook(power_sgd.hook());
///
/// Ranks send two thin factors, P and Q, instead of a gradient, a matrix of the parameter's first
/// dimension and the rest; docs/compression.md has the steps and the bytes. All other gradients of
/// a bucket are averaged uncompressed in one operation.
///
/// P and Q are float32, or float64 for float64 gradients. Complex gradients are not compressed, and
/// neither is anything on one rank. Gradients that are not finite become NaN on all ranks, as a
/// GradScaler expects. The optimizer keeps the residuals in float32 (BucketHook::error_feedback); a
/// skipped step leaves them unchanged. Checkpoints contain residuals and Qs; register the hook
/// before load().
///
/// The optimizer's `op`, `compression` and `join_divisor` have no effect: PowerSGD averages over
/// all ranks of the set, and joined ranks count as zeros. Like every hook, only with shard = None.
class PowerSgd {
 public:
  using Options = PowerSgdOptions;

  /// Collective over the set, and blocking.
  /// @throws InvalidArgument on all ranks if on any an option is out of range
  /// @throws MismatchError on all ranks if options differ
  explicit PowerSgd(const Options& options = {});

  /// @return the argument for DistributedOptimizer::register_bucket_hook. It shares the state of
  ///   this object, which need not outlive it
  BucketHook hook() const;

 private:
  std::shared_ptr<extras::PowerSgdReducer> reducer_;
};

}  // namespace kolo
#pragma GCC visibility pop

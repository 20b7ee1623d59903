#pragma once

#include <cstddef>
#include <cstdint>
#include <ostream>

#include "kolo/shard.hpp"

#pragma GCC visibility push(default)
namespace kolo {

/// The bytes that a DistributedOptimizer keeps and moves on this rank.
struct TrainingReport {
  struct Kept {
    std::size_t parameters = 0;       ///< that have gradients; with Shard::Full this rank's shards
    std::size_t gradients = 0;        ///< reduced ones: this rank's shards, or whole buckets
    std::size_t optimizer_state = 0;  ///< tensors, and master copies of parameters
    /// Slots for gradients in flight, from Shard::Gradients on, and for gathered units.
    std::size_t buckets = 0;
    std::size_t residuals = 0;  ///< of error feedback, with their copy from before the step

    std::size_t total() const {
      return parameters + gradients + optimizer_state + buckets + residuals;
    }
  };
  Shard shard = Shard::None;
  int ranks = 1;    ///< of the set
  int sharers = 1;  ///< ranks over which state is sharded
  Kept now;
  /// For P bytes of parameters with G bytes of gradients and S bytes of state on n sharers:
  /// P + G + S with Shard::None, P + G + S / n with Shard::Optimizer, P + G / n + S / n with
  /// Shard::Gradients, (P + G + S) / n with Shard::Full, without buckets. G is P unless
  /// reduce_dtype is wider. A codec's error feedback adds two floats per element that a rank
  /// encodes. Before the first step, the report of a sharded optimizer predicts what will be kept.
  Kept expected;
  std::size_t peak_resident = 0;         ///< of the process so far, with shared memory
  std::size_t peak_at_construction = 0;  ///< the same, after the optimizer was constructed
  /// Bytes that this rank sent in the last step, or moved to or from other ranks' memory.
  std::uint64_t sent_per_step = 0;
  /// What ring algorithms send without compression: (G + P) (n - 1) / n, or with Shard::None twice
  /// G (n - 1) / n. With Shard::Full: G (n - 1) / n where ranks share memory and nothing is
  /// gathered; otherwise P (n - 1) / n more for forward() and again for backward(), where P
  /// includes frozen parameters. Where the g ranks of a node share the gathered memory, a gather
  /// sends P / n (n / g - 1). With ShardScope::Node the sum of both levels; with
  /// Accumulation::Reduced the reductions of every pass. For gradients that a codec encodes, the
  /// formula counts encoded bytes.
  std::uint64_t expected_sent_per_step = 0;
  /// Seconds that collectives took on this rank's GPU, counting those whose end was observed
  /// between the last two steps. Most of this overlaps the program's kernels. 0 without a GPU.
  double gpu_seconds_per_step = 0.0;
  /// Seconds in which the program's threads waited for operations of any kind in the last step:
  /// communication that nothing hid. On a GPU, waits of its streams come on top.
  double exposed_seconds_per_step = 0.0;
};

/// Prints the report as a table of a few lines, in MiB.
std::ostream& operator<<(std::ostream& stream, const TrainingReport& report);

}  // namespace kolo
#pragma GCC visibility pop

#pragma once

#include <cstddef>
#include <cstdint>
#include <ostream>

#include "kolo/shard.hpp"

namespace kolo {

/// What a DistributedOptimizer keeps on this rank and moves, in bytes.
struct TrainingReport {
  struct Kept {
    std::size_t parameters = 0;       ///< those that get gradients
    std::size_t gradients = 0;        ///< reduced ones; undivided, the buckets that they lie in
    std::size_t optimizer_state = 0;  ///< tensors
    std::size_t buckets = 0;          ///< in which gradients are on their way, beside the above

    std::size_t total() const { return parameters + gradients + optimizer_state + buckets; }
  };
  Shard shard = Shard::None;
  int ranks = 1;    ///< of the set
  int sharers = 1;  ///< ranks among which state is divided
  Kept now;
  /// By the formulas: of P bytes of parameters with S bytes of state, P + P + S undivided, and over
  /// n sharers P + P + S / n with Shard::Optimizer, P + P / n + S / n with Shard::Gradients,
  /// without buckets. Before the first step of a sharded optimizer they are what is to come.
  Kept expected;
  /// Of the process, as the system counts it, shared memory included: the most so far, and when the
  /// optimizer had been made.
  std::size_t peak_resident = 0;
  std::size_t peak_at_construction = 0;
  /// What this rank sent, or moved to or from other ranks' memory, in the last step, and what ring
  /// algorithms move without compression: 2 P (n - 1) / n, of hybrid sharding inside and between
  /// nodes together, and with Accumulation::Reduced once more for every further pass.
  std::uint64_t sent_per_step = 0;
  std::uint64_t expected_sent_per_step = 0;
  /// What reductions took on this rank's GPU, of those seen to end between the last two steps; most
  /// of it while kernels of the program ran. 0 without a GPU.
  double gpu_seconds_per_step = 0.0;
};

/// As a table of a few lines.
std::ostream& operator<<(std::ostream& stream, const TrainingReport& report);

}  // namespace kolo

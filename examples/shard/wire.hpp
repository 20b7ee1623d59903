#pragma once

#include <cstdint>

#include "kolo/runtime.hpp"
#include "kolo/shard.hpp"

namespace shard {

/// The number of ranks that share one copy of the parameters with Shard::Full.
inline int ranks_per_copy() {
  const kolo::Runtime& runtime = kolo::Runtime::current();
  const bool share_memory = runtime.config().shared_memory && runtime.is_homogeneous();
  return share_memory ? runtime.local_size() : 1;
}

/// The bytes that a rank must send to reduce `parameters` fp32 gradients, and to gather the updated
/// parameters once; with Shard::Full in forward() and in backward(), to every other copy.
inline double min_bytes_sent(kolo::Shard shard, std::int64_t parameters, int ranks,
                             int ranks_per_copy) {
  const int receivers = shard == kolo::Shard::Full ? 2 * (ranks / ranks_per_copy - 1) : ranks - 1;
  return 4.0 * static_cast<double>(parameters) * (ranks - 1 + receivers) / ranks;
}

/// The limit of a step's bytes, relative to that. Flags that say which gradients exist are extra.
inline constexpr double kMaxBytesSentRatio = 1.01;

/// Bytes sent by this rank so far.
inline std::uint64_t bytes_sent() { return kolo::Runtime::current().world().metrics().bytes_sent; }

}  // namespace shard

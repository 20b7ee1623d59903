#pragma once

#include <cstdint>

#include "kolo/runtime.hpp"
#include "kolo/shard.hpp"

namespace shard {

/// How many ranks have one copy of parameters with Shard::Full.
inline int ranks_per_copy() {
  const kolo::Runtime& runtime = kolo::Runtime::current();
  const bool share_memory = runtime.config().shared_memory && runtime.is_homogeneous();
  return share_memory ? runtime.local_size() : 1;
}

/// What a rank must send to reduce as many fp32 gradients and to gather what was made of them:
/// once, but with Shard::Full for forward() and for backward(), to each copy but its own.
inline double least_bytes_sent(kolo::Shard shard, std::int64_t parameters, int ranks,
                               int ranks_per_copy) {
  const int receivers = shard == kolo::Shard::Full ? 2 * (ranks / ranks_per_copy - 1) : ranks - 1;
  return 4.0 * static_cast<double>(parameters) * (ranks - 1 + receivers) / ranks;
}

/// How many times that much a step may send, with what says which gradients there are.
inline constexpr double kMostBytesSent = 1.01;

/// By this rank so far.
inline std::uint64_t bytes_sent() { return kolo::Runtime::current().world().metrics().bytes_sent; }

}  // namespace shard

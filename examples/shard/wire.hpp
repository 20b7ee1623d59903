#pragma once

#include <cstdint>

#include "kolo/runtime.hpp"
#include "kolo/shard.hpp"

namespace shard {

/// What a rank must send to reduce as many fp32 gradients and to gather what was made of them:
/// once, but with Shard::Full not at all if ranks share memory, and otherwise for forward() and for
/// backward().
inline double least_bytes_sent(kolo::Shard shard, std::int64_t parameters, int ranks,
                               bool share_memory) {
  const double passes = shard != kolo::Shard::Full ? 2.0 : share_memory ? 1.0 : 3.0;
  return passes * 4.0 * static_cast<double>(parameters) * (ranks - 1) / ranks;
}

/// How many times that much a step may send, with what says which gradients there are.
inline constexpr double kMostBytesSent = 1.01;

/// By this rank so far.
inline std::uint64_t bytes_sent() { return kolo::Runtime::current().world().metrics().bytes_sent; }

}  // namespace shard

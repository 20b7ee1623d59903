#pragma once

#include <cstdint>

#include "kolo/runtime.hpp"

namespace shard {

/// What a rank must send to reduce as many fp32 gradients and to gather what was made of them.
inline double least_bytes_sent(std::int64_t parameters, int ranks) {
  return 2.0 * 4.0 * static_cast<double>(parameters) * (ranks - 1) / ranks;
}

/// How many times that much a step may send, with what says which gradients there are.
inline constexpr double kMostBytesSent = 1.01;

/// By this rank so far.
inline std::uint64_t bytes_sent() { return kolo::Runtime::current().world().metrics().bytes_sent; }

}  // namespace shard

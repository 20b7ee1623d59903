#pragma once

#include <cstddef>
#include <cstdint>

namespace kolo::runtime {

/// Estimates the bytes that a rank sends to other GPUs, which NCCL does not report: the average
/// over the ranks of a ring.
class RingTraffic {
 public:
  explicit RingTraffic(int size) : size_(static_cast<std::uint64_t>(size)) {}

  /// Once around the ring: an all-gather, a reduce-scatter, a broadcast.
  void add_round(std::size_t bytes) { bytes_ += bytes * (size_ - 1) / size_; }
  void add_sent(std::size_t bytes) { bytes_ += bytes; }

  std::uint64_t bytes() const { return bytes_; }

 private:
  std::uint64_t size_;
  std::uint64_t bytes_ = 0;
};

}  // namespace kolo::runtime

#pragma once

#include <cstddef>
#include <cstdint>

namespace kolo::runtime {

/// Counts what a rank sends to other GPUs, which nobody else tells: on the average over the ranks
/// of a ring.
class RingTraffic {
 public:
  explicit RingTraffic(int size) : size_(static_cast<std::uint64_t>(size)) {}

  /// All ranks' pieces, or one rank's whole, pass all ranks: a gather, a reduce-scatter, a
  /// broadcast.
  void add_round(std::size_t bytes) { bytes_ += bytes * (size_ - 1) / size_; }
  void add_sent(std::size_t bytes) { bytes_ += bytes; }

  std::uint64_t bytes() const { return bytes_; }

 private:
  std::uint64_t size_;
  std::uint64_t bytes_ = 0;
};

}  // namespace kolo::runtime

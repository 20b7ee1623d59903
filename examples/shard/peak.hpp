#pragma once

#include <cstddef>
#include <thread>

#include "shard/allocations.hpp"

namespace shard {

/// Watches how much memory tensors and shared segments of this rank take together, as long as it
/// lives.
class PeakWatch {
 public:
  explicit PeakWatch(Allocations& allocations);

  /// Ends it, and returns the most bytes at once: of tensors exactly, to which segments are added
  /// as they were found every millisecond. Too much rather than too little where both change within
  /// one.
  std::size_t stop();

  /// This rank's share of the segments that the ranks of its node have made for all to map.
  static std::size_t own_share();

 private:
  void look();

  Allocations& allocations_;
  std::size_t segment_bytes_;
  std::size_t peak_bytes_ = 0;
  std::jthread thread_;  // last: it uses the others
};

}  // namespace shard

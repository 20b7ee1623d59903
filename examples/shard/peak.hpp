#pragma once

#include <cstddef>
#include <thread>

#include "shard/allocations.hpp"

namespace shard {

/// While it exists, watches how much memory tensors and shared segments of this rank take together.
class PeakWatch {
 public:
  explicit PeakWatch(Allocations& allocations);

  /// Stops watching, and returns the peak in bytes: exact for tensors, plus segments, which are
  /// sampled every millisecond. An overestimate if both change within a millisecond.
  std::size_t stop();

  /// This rank's share of all segments that the ranks of its node have made for one another to map.
  static std::size_t own_share();

 private:
  void look();

  Allocations& allocations_;
  std::size_t segment_bytes_;
  std::size_t peak_bytes_ = 0;
  std::jthread thread_;  // last: it uses the others
};

}  // namespace shard

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kolo::test {

/// A lower bound on each timeline's progress, as one of them knows it. Zero: nothing is known.
class VectorClock {
 public:
  std::uint64_t at(std::size_t timeline) const {
    return timeline < ticks_.size() ? ticks_[timeline] : 0;
  }

  void set(std::size_t timeline, std::uint64_t tick) {
    if (timeline >= ticks_.size()) ticks_.resize(timeline + 1);
    ticks_[timeline] = tick;
  }

  void join(const VectorClock& other) {
    if (other.ticks_.size() > ticks_.size()) ticks_.resize(other.ticks_.size());
    for (std::size_t i = 0; i < other.ticks_.size(); ++i) {
      ticks_[i] = std::max(ticks_[i], other.ticks_[i]);
    }
  }

 private:
  std::vector<std::uint64_t> ticks_;
};

}  // namespace kolo::test

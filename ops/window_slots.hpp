#pragma once

#include <cstddef>
#include <string_view>

#include "kolo/algorithm.hpp"

namespace kolo::ops {

/// Every rank's segment of a window, cut into slots of one size that chunks use in turn.
class WindowSlots {
 public:
  /// Bytes that every segment of a window of so many ranks must have for all built-in algorithms.
  static std::size_t least_segment_bytes(int ranks);

  struct Layout {
    std::size_t count;             ///< of slots
    std::size_t least_bytes = 64;  ///< of one slot
    std::size_t header_bytes = 0;  ///< in front of the first one
  };

  /// Slots as long as the call's segments, where the window has room for that. Throws
  /// InvalidArgument, which says how much it needs, where it has none for the least.
  WindowSlots(SharedWindow& window, std::size_t segment_bytes, Layout layout,
              std::string_view algorithm);

  std::size_t bytes() const { return bytes_; }
  std::byte* of(int rank, std::size_t chunk) const {
    return window_->segment(rank).data() + layout_.header_bytes + chunk % layout_.count * bytes_;
  }

 private:
  SharedWindow* window_;
  Layout layout_;
  std::size_t bytes_;
};

}  // namespace kolo::ops

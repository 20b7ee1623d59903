#pragma once

#include <cstddef>
#include <string_view>

#include "kolo/algorithm.hpp"

namespace kolo::ops {

/// Divides every rank's segment of a window into slots of equal size. Chunk i of an operation uses
/// slot i modulo their number.
class WindowSlots {
 public:
  struct Layout {
    std::size_t count;             ///< of slots
    std::size_t min_bytes = 64;    ///< of one slot
    std::size_t header_bytes = 0;  ///< in front of the first one
  };

  /// Slots of `segment_bytes`, or smaller ones if the window has no room for these. Throws
  /// InvalidArgument, naming the required bytes, if there is no room for slots of
  /// `layout.min_bytes`.
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

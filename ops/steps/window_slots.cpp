#include "ops/steps/window_slots.hpp"

#include <algorithm>
#include <string>

#include "kolo/error.hpp"

namespace kolo::ops {

WindowSlots::WindowSlots(SharedWindow& window, std::size_t segment_bytes, Layout layout,
                         std::string_view algorithm)
    : window_(&window), layout_(layout) {
  const std::size_t available = window.segment(window.rank()).size();
  const std::size_t least = layout.header_bytes + layout.count * layout.min_bytes;
  if (available < least) {
    throw InvalidArgument(std::string(algorithm) + " through the window: a segment of " +
                          std::to_string(available) + " bytes is too small for " +
                          std::to_string(window.size()) + " ranks, it must have " +
                          std::to_string(least) + " at least");
  }
  const std::size_t room = (available - layout.header_bytes) / layout.count / 64 * 64;
  bytes_ = std::min(room, std::max(segment_bytes, layout.min_bytes));
}

}  // namespace kolo::ops

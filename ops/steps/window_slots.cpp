#include "ops/steps/window_slots.hpp"

#include <algorithm>
#include <string>

#include "kolo/error.hpp"
#include "ops/kernels/pieces.hpp"
#include "ops/steps/shares.hpp"

namespace kolo::ops {

/// The all-to-all needs the most: three slots with a line for every rank, after a list of lengths.
/// (The tests run every algorithm in a window of just this size.)
std::size_t WindowSlots::min_segment_bytes(int ranks) {
  constexpr std::size_t kSlots = 3;
  constexpr std::size_t kLine = Shares::kLineBytes;
  const auto count = static_cast<std::size_t>(ranks);
  const std::size_t lengths = segment_count((1 + count) * sizeof(std::uint64_t), kLine) * kLine;
  return lengths + kSlots * Shares::min_slot_bytes(count);
}

WindowSlots::WindowSlots(SharedWindow& window, std::size_t segment_bytes, Layout layout,
                         std::string_view algorithm)
    : window_(&window), layout_(layout) {
  const std::size_t available = window.segment(window.rank()).size();
  const std::size_t least = layout.header_bytes + layout.count * layout.min_bytes;
  if (available < least) {
    throw InvalidArgument(std::string(algorithm) + " through the window: a segment of " +
                          std::to_string(available) + " bytes is too small for " +
                          std::to_string(window.size()) + " ranks, it must have " +
                          std::to_string(least) + " at least (KOLO_STAGING_BYTES)");
  }
  const std::size_t room = (available - layout.header_bytes) / layout.count / 64 * 64;
  bytes_ = std::min(room, std::max(segment_bytes, layout.min_bytes));
}

}  // namespace kolo::ops

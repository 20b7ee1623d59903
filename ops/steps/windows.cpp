#include "ops/steps/windows.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "kolo/error.hpp"
#include "ops/kernels/kernels.hpp"

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

WindowReduction::WindowReduction(const CollectiveCall& call, std::vector<Range> pieces,
                                 std::size_t slots, std::string_view algorithm)
    : call_(call),
      window_(*call.window),
      wire_(wire_dtype(call)),
      slots_(window_, call.segment_bytes,
             {.count = slots, .min_bytes = Shares::min_slot_bytes(pieces.size())}, algorithm),
      shares_(std::move(pieces), size_of(wire_), slots_.bytes()),
      inputs_(static_cast<std::size_t>(window_.size())) {}

void WindowReduction::copy_in(std::size_t chunk) {
  const int rank = window_.rank();
  for (int peer = 0; peer < window_.size(); ++peer) {
    const std::span<const std::byte> source = bytes_of(call_, call_.input, part(peer, chunk));
    if (peer == rank || source.empty()) continue;
    std::byte* const place = slots_.of(rank, chunk) + shares_.place(peer);
    if (call_.compressor == nullptr) {
      std::memcpy(place, source.data(), source.size());
    } else {
      call_.compressor->compress(call_.dtype, source.data(), part(peer, chunk).length, place);
    }
  }
}

void WindowReduction::combine_own(std::size_t chunk, std::byte* output, bool keeps) {
  const int rank = window_.rank();
  const Range own = part(rank, chunk);
  const std::byte* const source = bytes_of(call_, call_.input, own).data();
  std::byte* const kept = own_place(rank, chunk);
  for (int peer = 0; peer < window_.size(); ++peer) {
    inputs_[static_cast<std::size_t>(peer)] = slots_.of(peer, chunk) + shares_.place(rank);
  }
  window_.count_moved(static_cast<std::size_t>(window_.size() - 1) * own.length * size_of(wire_));
  if (call_.compressor != nullptr) {
    call_.compressor->compress(call_.dtype, source, own.length, kept);
    combine(wire_, call_.reduction, inputs_, std::array{kept}, own.length);
    call_.compressor->decompress(call_.dtype, kept, own.length, output);
    return;
  }
  inputs_[static_cast<std::size_t>(rank)] = source;
  const std::array outputs{output, kept};
  combine(wire_, call_.reduction, inputs_, std::span(outputs).first(keeps ? 2 : 1), own.length);
}

void WindowReduction::copy_out(int peer, std::size_t chunk, std::byte* output) {
  const std::size_t length = part(peer, chunk).length;
  if (length == 0) return;
  const std::byte* const kept = own_place(peer, chunk);
  window_.count_moved(length * size_of(wire_));
  if (call_.compressor == nullptr) {
    std::memcpy(output, kept, length * size_of(wire_));
  } else {
    call_.compressor->decompress(call_.dtype, kept, length, output);
  }
}

}  // namespace kolo::ops

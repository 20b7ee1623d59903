#include "ops/window_reduction.hpp"

#include <cstring>
#include <utility>

#include "ops/kernels.hpp"

namespace kolo::ops {

WindowReduction::WindowReduction(const CollectiveCall& call, std::vector<Range> pieces,
                                 std::size_t slots, std::string_view algorithm)
    : call_(call),
      window_(*call.window),
      slots_(window_, call.segment_bytes,
             {.count = slots, .least_bytes = Shares::least_slot_bytes(pieces.size())}, algorithm),
      shares_(std::move(pieces), size_of(call.dtype), slots_.bytes()),
      inputs_(static_cast<std::size_t>(window_.size())) {}

void WindowReduction::copy_in(std::size_t chunk) {
  const int rank = window_.rank();
  for (int peer = 0; peer < window_.size(); ++peer) {
    const std::span<const std::byte> source = bytes_of(call_, call_.input, part(peer, chunk));
    if (peer == rank || source.empty()) continue;
    std::memcpy(slots_.of(rank, chunk) + shares_.place(peer), source.data(), source.size());
  }
}

void WindowReduction::combine_own(std::size_t chunk, std::span<std::byte* const> outputs) {
  const int rank = window_.rank();
  const Range own = part(rank, chunk);
  for (int peer = 0; peer < window_.size(); ++peer) {
    inputs_[static_cast<std::size_t>(peer)] = slots_.of(peer, chunk) + shares_.place(rank);
  }
  const std::span<const std::byte> source = bytes_of(call_, call_.input, own);
  inputs_[static_cast<std::size_t>(rank)] = source.data();
  combine(call_.dtype, call_.reduction, inputs_, outputs, own.length);
  window_.count_moved(static_cast<std::size_t>(window_.size() - 1) * source.size());
}

}  // namespace kolo::ops

#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "kolo/algorithm.hpp"
#include "kolo/shared_window.hpp"
#include "ops/kernels/pieces.hpp"
#include "ops/steps/reduction_plan.hpp"

namespace kolo::ops {

/// Copies from `source`, in the memory of another rank of `window`, to `target`. Non-temporal
/// stores were measured from 1 MB to 256 MB and are no faster than memcpy at any size.
inline void copy_from_peer(SharedWindow& window, const std::byte* source,
                           std::span<std::byte> target) {
  if (target.empty()) return;
  std::memcpy(target.data(), source, target.size());
  window.count_moved(target.size());
}

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

/// The steps of all reductions through a window, chunk by chunk: copy the others' parts in, combine
/// the own part from all slots, copy results out. The algorithm decides when. Slots hold payloads
/// if the call has a compressor.
class WindowReduction {
 public:
  /// `pieces`: the part of the input that each rank combines.
  WindowReduction(const CollectiveCall& call, std::vector<Range> pieces, std::size_t slots,
                  std::string_view algorithm);

  std::size_t chunks() const { return shares_.chunks(); }
  Range part(int rank, std::size_t chunk) const { return shares_.part(rank, chunk); }

  /// Copies the others' parts from this rank's input into its slot.
  void copy_in(std::size_t chunk);
  /// Combines all ranks' inputs of this rank's part, in rank order, into `output`. `keeps`: also
  /// into this part's place in the slot.
  void combine_own(std::size_t chunk, std::byte* output, bool keeps);
  /// Copies the result of `peer`, which has kept it, from its slot.
  void copy_out(int peer, std::size_t chunk, std::byte* output);

 private:
  std::byte* own_place(int rank, std::size_t chunk) const {
    return slots_.of(rank, chunk) + shares_.place(rank);
  }

  const CollectiveCall& call_;
  SharedWindow& window_;
  const DType wire_;  // of the data in slots
  WindowSlots slots_;
  Shares shares_;
  std::vector<const std::byte*> inputs_;
};

}  // namespace kolo::ops

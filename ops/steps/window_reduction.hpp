#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "kolo/algorithm.hpp"
#include "ops/steps/shares.hpp"
#include "ops/steps/window_slots.hpp"

namespace kolo::ops {

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

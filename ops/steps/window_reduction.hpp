#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "kolo/algorithm.hpp"
#include "ops/steps/shares.hpp"
#include "ops/steps/window_slots.hpp"

namespace kolo::ops {

/// The steps that reductions through a window have in common, chunk by chunk: copy the others'
/// parts in, combine the own part straight from all slots, copy results out. When, is up to the
/// algorithm. Slots hold what the call's compressor makes, where it has one.
class WindowReduction {
 public:
  /// `pieces`: what of the input each rank of the window combines.
  WindowReduction(const CollectiveCall& call, std::vector<Range> pieces, std::size_t slots,
                  std::string_view algorithm);

  std::size_t chunks() const { return shares_.chunks(); }
  Range part(int rank, std::size_t chunk) const { return shares_.part(rank, chunk); }

  /// The others' parts into this rank's slot, from its input.
  void copy_in(std::size_t chunk);
  /// All ranks' inputs for this rank's part, in rank order, to `output`. `keeps`: to the own part's
  /// place in the slot too, which nobody copies in.
  void combine_own(std::size_t chunk, std::byte* output, bool keeps);
  /// The part of `peer`, which has kept it, from its slot.
  void copy_out(int peer, std::size_t chunk, std::byte* output);

 private:
  std::byte* own_place(int rank, std::size_t chunk) const {
    return slots_.of(rank, chunk) + shares_.place(rank);
  }

  const CollectiveCall& call_;
  SharedWindow& window_;
  const DType wire_;  // of what lies in slots
  WindowSlots slots_;
  Shares shares_;
  std::vector<const std::byte*> inputs_;
};

}  // namespace kolo::ops

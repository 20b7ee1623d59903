#pragma once

#include <cstddef>
#include <vector>

#include "ops/kernels/pieces.hpp"

namespace kolo::ops {

/// Pieces of a buffer, one per rank, that pass through the slots of a window together: each is cut
/// into one part for every chunk, so that long and short pieces end at the same time. A rank's
/// parts have the same place in every chunk's slot; places begin at cache lines, so that each line
/// has one writer.
class Shares {
 public:
  static constexpr std::size_t kLineBytes = 64;

  /// The minimum size of a slot for the parts of `ranks` pieces.
  static std::size_t min_slot_bytes(std::size_t ranks) { return (ranks + 1) * kLineBytes; }

  /// The part of a piece in one of `chunks` chunks; empty after its end.
  static Range part_of(Range piece, std::size_t chunks, std::size_t chunk,
                       std::size_t element_bytes);

  Shares(std::vector<Range> pieces, std::size_t element_bytes, std::size_t slot_bytes);

  std::size_t chunks() const { return chunks_; }

  /// The part of `rank`'s piece in a chunk.
  Range part(int rank, std::size_t chunk) const {
    return part_of(pieces_[static_cast<std::size_t>(rank)], chunks_, chunk, element_bytes_);
  }

  /// The place of that part in a slot.
  std::size_t place(int rank) const { return places_[static_cast<std::size_t>(rank)]; }

 private:
  std::vector<Range> pieces_;
  std::size_t element_bytes_;
  std::size_t chunks_;
  std::vector<std::size_t> places_;
};

}  // namespace kolo::ops

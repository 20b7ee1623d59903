#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "kolo/algorithm.hpp"
#include "ops/kernels/pieces.hpp"

namespace kolo::ops {

/// The first half of a direct exchange: every rank receives all ranks' parts of one piece of the
/// input. They are combined in rank order, 16-bit floats in float32 with one rounding, so that the
/// bits do not depend on how the input is cut.
///
///        rank 0          rank 1          rank 2
///     a0  a1  a2      b0  b1  b2      c0  c1  c2       inputs, cut into pieces
///     a0 b0 c0        a1 b1 c1        a2 b2 c2         after finish(): each has all of its piece
///        s0              s1              s2            after combine()
///
/// Pieces longer than a segment are sent segment by segment, two at a time. The longest piece
/// determines the number of segments; those after the end of a shorter piece are empty.
/// Scratch: 2 n segments.
class Contributions {
 public:
  /// Rank p is responsible for pieces[p]. The call must live as long as this object.
  Contributions(const CollectiveCall& call, std::vector<Range> pieces, int tag);

  std::size_t segments() const { return segment_count(longest_, segment_); }
  Range range(int rank, std::size_t segment) const {
    return segment_of(pieces_[static_cast<std::size_t>(rank)], segment_, segment);
  }

  /// Sends this rank's parts of all pieces, and starts to receive the others' parts of its own.
  void start(std::size_t segment);
  /// Completes when these transfers have completed: the input may be overwritten, and the parts
  /// have been received.
  Task finish(std::size_t segment);
  /// Writes the result of this rank's segment to `output`, which may be in the input.
  void combine(std::size_t segment, std::byte* output);

 private:
  std::byte* slot(int rank, std::size_t segment);

  const CollectiveCall& call_;
  Communicator& communicator_;
  int rank_;
  int size_;
  int tag_;
  std::vector<Range> pieces_;
  std::size_t segment_;
  std::size_t longest_;
  std::size_t slot_bytes_;
  std::unique_ptr<std::byte[]> scratch_;
  std::vector<const std::byte*> inputs_;
  std::array<std::vector<Transfer>, 2> transfers_;  // of even and odd segments
};

}  // namespace kolo::ops

#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "kolo/algorithm.hpp"
#include "ops/kernels/pieces.hpp"
#include "ops/steps/contributions.hpp"

namespace kolo::ops {

/// Elements in the longest message or chunk of a call with a codec: whole blocks, at least one.
std::size_t coded_segment_length(const CollectiveCall& call);

/// Bytes of the payload of `count` elements, block by block.
inline std::size_t coded_bytes(const Codec& codec, std::size_t count, int terms) {
  const std::size_t rest = count % codec.block();
  return count / codec.block() * codec.payload_bytes(codec.block(), terms) +
         (rest > 0 ? codec.payload_bytes(rest, terms) : 0);
}

/// A direct exchange (see contributions.hpp) of encoded pieces: every rank encodes its part of each
/// piece for the rank responsible for it. That rank decodes and adds up the parts in float32, in
/// rank order; its own part is not encoded.
///
/// If the call has a residual, it is added to the parts before they are encoded, and replaced with
/// the encoding error.
class CodedContributions {
 public:
  /// Rank p is responsible for pieces[p]. The call must live as long as this object.
  CodedContributions(const CollectiveCall& call, std::vector<Range> pieces, int tag);

  std::size_t segments() const { return segment_count(longest_of(pieces_), segment_); }
  Range range(int rank, std::size_t segment) const {
    return segment_of(pieces_[static_cast<std::size_t>(rank)], segment_, segment);
  }

  /// Encodes and sends this rank's parts of all pieces, and starts to receive the others' parts of
  /// its own. The segment's input may be overwritten afterwards, except for this rank's own piece.
  void start(std::size_t segment);
  /// Completes when these transfers have completed.
  Task finish(std::size_t segment);
  /// Returns the sum of this rank's segment, unscaled, in memory that the next call reuses.
  std::span<float> sum(std::size_t segment);

 private:
  std::byte* sent(int rank, std::size_t segment);
  std::byte* received(int rank, std::size_t segment);

  const CollectiveCall& call_;
  Communicator& communicator_;
  int rank_;
  int size_;
  int tag_;
  std::vector<Range> pieces_;
  std::size_t segment_;
  std::size_t slot_bytes_;
  std::vector<std::byte> slots_;  // for sent and received payloads of all ranks, of two segments
  std::vector<float> sum_;
  std::vector<float> block_;
  std::array<std::vector<Transfer>, 2> transfers_;  // of even and odd segments
};

/// Adds `residual`, unless it is null, to `values` and encodes them; `residual` becomes the
/// encoding error. Both have equally many elements; `block` is memory for one block.
void encode_with_residual(const Codec& codec, std::span<float> values, float* residual, int terms,
                          std::byte* payload, std::span<float> block);

/// Decodes `range` of the call's output from the payload of a sum, and scales it.
void write_decoded(const CollectiveCall& call, Range range, const std::byte* payload,
                   std::span<float> block);

/// Writes `values`, scaled, to the call's output from element `begin` on. Changes `values`.
void write_scaled(const CollectiveCall& call, std::size_t begin, std::span<float> values);

}  // namespace kolo::ops

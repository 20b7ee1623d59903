#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kolo/dtype.hpp"
#include "kolo/reduction.hpp"
#include "ops/kernels/pieces.hpp"

namespace kolo::ops {

/// The type that a reduction runs in: Int64 for averages of integers, else the tensor's own.
DType wire_dtype(DType dtype, ReduceOp op);

/// How an algorithm runs a requested reduction, and how averages are computed. The caller
///   1 converts the tensor to `wire` if that is not its type, and then has no peer buffers;
///   2 runs the algorithm with `wire` and `reduction`;
///   3 divides by `divisor` (ops::divide) if that is not 1;
///   4 converts back.
struct ReductionPlan {
  DType wire = DType::Float32;
  Reduction reduction{};
  std::int64_t divisor = 1;

  bool operator==(const ReductionPlan&) const = default;
};

/// The average of `size` ranks:
/// - float32, float64, complex64, complex128: the sum, postscaled by 1/size.
/// - float16: the same if the algorithm is `rank_ordered`, since float32 holds any sum of them;
///   else prescaled by 1/size, so that partial sums stay below the largest input.
/// - bfloat16: prescaled, because its sums overflow float32 too.
/// - integers: the sum in Int64, then an exact division truncating toward zero. Int64 itself wraps
///   if the sum does. A factor would be inexact: 1/49 is no float64, and the average of equal
///   values must be that value.
/// The user's scales are applied in addition, the postscale of an integer average before the
/// division. Other operations are not changed; the caller sets the function of Custom.
/// Throws InvalidArgument for Bool with anything but Min, Max and Custom, for Min and Max of
/// complex types, for Adasum of integers, and for Custom with scales.
ReductionPlan plan_reduction(DType dtype, ReduceOp op, double prescale, double postscale,
                             bool rank_ordered, int size);

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

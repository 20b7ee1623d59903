#pragma once

#include <cstdint>

#include "kolo/dtype.hpp"
#include "kolo/reduction.hpp"

namespace kolo::ops {

/// The type that a reduction runs in: Int64 for averages of integers, else the tensor's own.
DType wire_dtype(DType dtype, ReduceOp op);

/// How a reduction that users ask for runs on an algorithm: the one place that decides about
/// averages. The caller
///   1 widens the tensor to `wire` (base::convert), where that is another type than the tensor's,
/// and
///     then has no peer buffers;
///   2 runs the algorithm with `wire` and `reduction`;
///   3 divides by `divisor` (ops::divide), where that is not 1;
///   4 narrows back.
struct ReductionPlan {
  DType wire = DType::Float32;
  Reduction reduction{};
  std::int64_t divisor = 1;

  bool operator==(const ReductionPlan&) const = default;
};

/// The average of `size` ranks:
/// - float32, float64: the sum, postscaled by 1/size.
/// - float16: the same where the algorithm is `rank_ordered`, since float32 holds any sum of them;
///   else prescaled by 1/size, so that partial sums stay below the largest input.
/// - bfloat16: prescaled, because its sums overflow float32 too.
/// - integers: the sum in Int64, then an exact division truncating toward zero. Int64 itself wraps
///   where the sum does. Only so is the average of equal values that value: 1/49 is no float64.
/// The user's scales are applied besides, the postscale of an integer average before the division.
/// Other operations run as they are; of Custom the caller adds which one it is.
/// Throws InvalidArgument for what is not defined: of Bool all but Min, Max and Custom; Adasum of
/// types that are not floating; scales of Custom.
ReductionPlan plan_reduction(DType dtype, ReduceOp op, double prescale, double postscale,
                             bool rank_ordered, int size);

}  // namespace kolo::ops

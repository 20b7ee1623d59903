#pragma once

#include <cstdint>

#include "kolo/dtype.hpp"
#include "kolo/reduction.hpp"

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

}  // namespace kolo::ops

#pragma once

#include <cstdint>

#include "comm/device_communicator.hpp"
#include "kolo/dtype.hpp"
#include "kolo/reduction.hpp"

namespace kolo::runtime {

/// How a reduction that users ask for runs on GPUs:
///   1 where it is staged, elements are converted to `wire` and multiplied by `before` on their way
///     into a staging buffer;
///   2 they are combined as `reduction` says;
///   3 they are multiplied by `after`, divided by `divisor` and converted back, where that changes
///     anything.
struct DevicePlan {
  DType wire = DType::Float32;
  bool is_staged = false;
  double before = 1.0;
  comm::DeviceReduction reduction{};
  double after = 1.0;
  std::int64_t divisor = 1;

  bool operator==(const DevicePlan&) const = default;
  /// Step 3 does something to elements of `dtype` that lie in place.
  bool changes(DType dtype) const { return wire != dtype || after != 1.0 || divisor != 1; }
};

/// `payload` is what travels of elements of `dtype`: the same, or what they are compressed to.
/// `must_stage`: several tensors run as one. Sums of floating types that are not staged are scaled
/// by the library below, in the pass that combines them; staged ones while they are copied, in
/// float32. int16, which NCCL does not know, travels as int32. Averages are those of
/// ops::plan_reduction where sums have no order. Neither Adasum nor Custom. Throws InvalidArgument
/// for what is not defined.
DevicePlan plan_on_device(DType dtype, DType payload, ReduceOp op, double prescale,
                          double postscale, int size, bool must_stage);

}  // namespace kolo::runtime

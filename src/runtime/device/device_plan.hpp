#pragma once

#include <cstdint>

#include "comm/gpu/device_communicator.hpp"
#include "kolo/dtype.hpp"
#include "runtime/protocol/request.hpp"

namespace kolo::runtime {

/// How a reduction that users ask for runs on GPUs.
///
/// By the library below:
///   1 where it is staged, elements are converted to `wire` and multiplied by `before` on their way
///     into a staging buffer;
///   2 they are combined as `reduction` says;
///   3 they are multiplied by `after`, divided by `divisor` and converted back, where that changes
///     anything.
/// By direct exchange (see DeviceExchange) `before` and `after` are factors of step 2.
struct DevicePlan {
  DType wire = DType::Float32;
  bool is_direct = false;
  bool is_staged = false;
  double before = 1.0;
  comm::DeviceReduction reduction{};
  double after = 1.0;
  std::int64_t divisor = 1;

  /// Step 3 does something to elements of `dtype` that lie in place.
  bool changes(DType dtype) const { return wire != dtype || after != 1.0 || divisor != 1; }
};

/// What a plan depends on besides the request.
struct DeviceSituation {
  DType dtype;
  DType payload;  ///< what travels of elements of `dtype`: the same, or what they are compressed to
  int size;       ///< that averages divide by
  bool is_fused = false;  ///< several tensors run as one
  bool prefers_direct =
      false;  ///< sums whose bits depend on the order are to be those of rank order
};

/// Sums of floating types that are not staged are scaled by the library below, in the pass that
/// combines them; staged ones while they are copied, in float32. int16, which NCCL does not know,
/// travels as int32. Averages are those of ops::plan_reduction. Adasum is always direct. Not for
/// Custom. Throws InvalidArgument for what is not defined.
DevicePlan plan_on_device(const Request& request, const DeviceSituation& situation);

}  // namespace kolo::runtime

#pragma once

#include <cstdint>

#include "comm/gpu/device_communicator.hpp"
#include "kolo/dtype.hpp"
#include "runtime/protocol/request.hpp"

namespace kolo::runtime {

/// How a reduction runs on GPUs.
///
/// Through the communicator:
///   1 if it is staged, elements are converted to `wire`, multiplied by `before` and copied into a
///     staging buffer;
///   2 they are combined as `reduction` says;
///   3 they are multiplied by `after`, divided by `divisor` and converted back, if that changes
///     anything.
/// By direct exchange (see DeviceExchange), step 2 multiplies by `before` and `after`.
struct DevicePlan {
  DType wire = DType::Float32;
  bool is_direct = false;
  bool is_staged = false;
  double before = 1.0;
  comm::DeviceReduction reduction{};
  double after = 1.0;
  std::int64_t divisor = 1;

  /// Whether step 3 changes elements of `dtype` in place.
  bool changes(DType dtype) const { return wire != dtype || after != 1.0 || divisor != 1; }
};

/// What a plan depends on in addition to the request.
struct DeviceSituation {
  DType dtype;
  DType payload;                ///< the type that `dtype` is compressed to, or `dtype`
  int size;                     ///< that averages divide by
  int ranks;                    ///< of the process set
  bool needs_staging = false;   ///< whatever the types are
  bool prefers_direct = false;  ///< sum floating types in rank order
};

/// Plans a reduction other than Custom. The communicator scales floating-point sums that are not
/// staged while it combines them; with a single rank they are scaled afterwards (see
/// DeviceReduction). Staged ones are scaled in float32 while they are copied. int16, which NCCL
/// cannot reduce, is sent as int32. Averages follow ops::plan_reduction. Adasum is always direct.
/// @throws InvalidArgument for reductions that are not defined
DevicePlan plan_on_device(const Request& request, const DeviceSituation& situation);

}  // namespace kolo::runtime

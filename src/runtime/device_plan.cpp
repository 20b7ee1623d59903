#include "runtime/device_plan.hpp"

#include <utility>

#include "ops/reduction_plan.hpp"

namespace kolo::runtime {

DevicePlan plan_on_device(DType dtype, DType payload, ReduceOp op, double prescale,
                          double postscale, int size, bool must_stage) {
  const ops::ReductionPlan plan =
      ops::plan_reduction(payload, op, prescale, postscale, /*rank_ordered=*/false, size);
  DevicePlan on_device;
  on_device.wire = plan.wire == DType::Int16 ? DType::Int32 : plan.wire;
  on_device.before = plan.reduction.prescale;
  on_device.after = plan.reduction.postscale;
  on_device.divisor = plan.divisor;
  on_device.reduction.op = plan.reduction.op;
  on_device.is_staged = must_stage || on_device.wire != dtype;
  if (on_device.is_staged) return on_device;
  if (plan.reduction.op == ReduceOp::Sum && is_floating(on_device.wire)) {
    on_device.reduction.factor =
        std::exchange(on_device.before, 1.0) * std::exchange(on_device.after, 1.0);
  }
  on_device.is_staged = on_device.before != 1.0;
  return on_device;
}

}  // namespace kolo::runtime

#include "runtime/device/device_plan.hpp"

#include <utility>

#include "ops/steps/reduction_plan.hpp"

namespace kolo::runtime {
namespace {

bool is_direct(ReduceOp op, const DeviceSituation& situation) {
  const bool is_sum = op == ReduceOp::Sum || op == ReduceOp::Average;
  return op == ReduceOp::Adasum ||
         (situation.prefers_direct && is_sum && is_floating(situation.payload));
}

}  // namespace

DevicePlan plan_on_device(const Request& request, const DeviceSituation& situation) {
  DevicePlan on_device;
  on_device.is_direct = is_direct(request.op, situation);
  const ops::ReductionPlan plan =
      ops::plan_reduction(situation.payload, request.op, request.prescale, request.postscale,
                          /*rank_ordered=*/on_device.is_direct, situation.size);
  on_device.wire = plan.wire == DType::Int16 ? DType::Int32 : plan.wire;
  on_device.before = plan.reduction.prescale;
  on_device.after = plan.reduction.postscale;
  on_device.divisor = plan.divisor;
  on_device.reduction.op = plan.reduction.op;
  on_device.is_staged = situation.needs_staging || on_device.wire != situation.dtype;
  if (on_device.is_staged || on_device.is_direct) return on_device;
  if (plan.reduction.op == ReduceOp::Sum && is_floating(on_device.wire)) {
    const double factor =
        std::exchange(on_device.before, 1.0) * std::exchange(on_device.after, 1.0);
    (situation.ranks > 1 ? on_device.reduction.factor : on_device.after) = factor;
  }
  on_device.is_staged = on_device.before != 1.0;
  return on_device;
}

}  // namespace kolo::runtime

#include "ops/reduction_plan.hpp"

#include <string>

#include "kolo/error.hpp"

namespace kolo::ops {

ReductionPlan plan_reduction(DType dtype, ReduceOp op, double prescale, double postscale,
                             bool rank_ordered, int size) {
  if (dtype == DType::Bool && op != ReduceOp::Min && op != ReduceOp::Max) {
    throw InvalidArgument("all-reduce of bool: " + std::string(name_of(op)) +
                          " is not defined; use Min (logical and) or Max (logical or), or convert "
                          "the tensor to an integer type");
  }
  if (op != ReduceOp::Average) return {dtype, {op, prescale, postscale}};
  if (!is_floating(dtype)) {
    return {DType::Int64, {ReduceOp::Sum, prescale, postscale}, size};
  }
  if (is_half(dtype) && !rank_ordered) {
    return {dtype, {ReduceOp::Sum, prescale / size, postscale}};
  }
  return {dtype, {ReduceOp::Sum, prescale, postscale / size}};
}

}  // namespace kolo::ops

#include "ops/reduction_plan.hpp"

#include <string>

#include "kolo/error.hpp"

namespace kolo::ops {

DType wire_dtype(DType dtype, ReduceOp op) {
  return op == ReduceOp::Average && !is_floating(dtype) ? DType::Int64 : dtype;
}

ReductionPlan plan_reduction(DType dtype, ReduceOp op, double prescale, double postscale,
                             bool rank_ordered, int size) {
  if (dtype == DType::Bool && op != ReduceOp::Min && op != ReduceOp::Max) {
    throw InvalidArgument("all-reduce of bool: " + std::string(name_of(op)) +
                          " is not defined; use Min (logical and) or Max (logical or), or convert "
                          "the tensor to an integer type");
  }
  if (op != ReduceOp::Average) return {dtype, {op, prescale, postscale}};
  if (!is_floating(dtype)) {
    return {wire_dtype(dtype, op), {ReduceOp::Sum, prescale, postscale}, size};
  }
  if (dtype == DType::BFloat16 || (dtype == DType::Float16 && !rank_ordered)) {
    return {dtype, {ReduceOp::Sum, prescale / size, postscale}};
  }
  return {dtype, {ReduceOp::Sum, prescale, postscale / size}};
}

}  // namespace kolo::ops

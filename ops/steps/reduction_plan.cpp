#include "ops/steps/reduction_plan.hpp"

#include <string>

#include "kolo/error.hpp"

namespace kolo::ops {

DType wire_dtype(DType dtype, ReduceOp op) {
  return op == ReduceOp::Average && is_integer(dtype) ? DType::Int64 : dtype;
}

namespace {

void check_reduction(DType dtype, ReduceOp op, double prescale, double postscale) {
  const std::string what = std::string(name_of(op)) + " of " + std::string(name_of(dtype));
  if (op == ReduceOp::Custom) {
    if (prescale == 1.0 && postscale == 1.0) return;
    throw InvalidArgument(what + ": scales of a custom reduction must be 1, got prescale " +
                          std::to_string(prescale) + " and postscale " + std::to_string(postscale) +
                          "; scale the tensor itself");
  }
  const bool is_order = op == ReduceOp::Min || op == ReduceOp::Max;
  if (is_complex(dtype) && is_order) {
    throw InvalidArgument(what +
                          " is not defined, as complex numbers have no order; reduce their real "
                          "and imaginary parts");
  }
  if (op == ReduceOp::Adasum && is_integer(dtype)) {
    throw InvalidArgument(what + " is not defined; convert the tensor to a floating type");
  }
  if (dtype == DType::Bool && !is_order) {
    throw InvalidArgument(what +
                          " is not defined; use Min (logical and) or Max (logical or), or "
                          "convert the tensor to an integer type");
  }
}

}  // namespace

ReductionPlan plan_reduction(DType dtype, ReduceOp op, double prescale, double postscale,
                             bool rank_ordered, int size) {
  check_reduction(dtype, op, prescale, postscale);
  if (op != ReduceOp::Average) return {dtype, {op, prescale, postscale}};
  if (is_integer(dtype)) {
    return {wire_dtype(dtype, op), {ReduceOp::Sum, prescale, postscale}, size};
  }
  if (dtype == DType::BFloat16 || (dtype == DType::Float16 && !rank_ordered)) {
    return {dtype, {ReduceOp::Sum, prescale / size, postscale}};
  }
  return {dtype, {ReduceOp::Sum, prescale, postscale / size}};
}

}  // namespace kolo::ops

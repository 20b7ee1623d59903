#include "ops/steps/reduction_plan.hpp"

#include <string>
#include <utility>

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
  if (is_bitwise(op)) {
    if (is_integer(dtype) || dtype == DType::Bool) return;
    throw InvalidArgument(what + " is not defined; view the tensor as integers");
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

namespace {

/// The cache lines of a part, except at the end of a piece.
std::size_t part_lines(Range piece, std::size_t chunks, std::size_t line) {
  return segment_count(piece.length, line * chunks);
}

}  // namespace

Range Shares::part_of(Range piece, std::size_t chunks, std::size_t chunk,
                      std::size_t element_bytes) {
  const std::size_t line = kLineBytes / element_bytes;
  return segment_of(piece, part_lines(piece, chunks, line) * line, chunk);
}

Shares::Shares(std::vector<Range> pieces, std::size_t element_bytes, std::size_t slot_bytes)
    : pieces_(std::move(pieces)), element_bytes_(element_bytes) {
  const std::size_t line = kLineBytes / element_bytes;
  const std::size_t slot_lines = slot_bytes / kLineBytes;
  std::size_t lines = 0;
  for (const Range& piece : pieces_) lines += segment_count(piece.length, line);
  // If the chunks do not divide a piece, a part is up to one line longer than its share.
  chunks_ = segment_count(lines, lines <= slot_lines ? slot_lines : slot_lines - pieces_.size());
  std::size_t place = 0;
  for (const Range& piece : pieces_) {
    places_.push_back(place);
    if (chunks_ > 0) place += part_lines(piece, chunks_, line) * kLineBytes;
  }
}

}  // namespace kolo::ops

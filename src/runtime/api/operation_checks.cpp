#include "runtime/api/operation_checks.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

#include "ops/kernels/pieces.hpp"

namespace kolo::runtime {

void add_invalid_reason(Operation& operation, std::string text) {
  if (operation.request.invalid_reason.empty()) operation.request.invalid_reason = std::move(text);
}

void check_memory(Operation& operation, const TensorView& tensor) {
  if (std::any_of(tensor.shape.begin(), tensor.shape.end(),
                  [](auto extent) { return extent < 0; })) {
    add_invalid_reason(operation, "a dimension of the tensor is negative");
  }
  if (tensor.data == nullptr && tensor.size_bytes() > 0) {
    add_invalid_reason(operation, "the tensor has elements but no memory");
  }
  // Kernels read whole elements. A rank that fails in the middle of a batch counts as lost.
  const auto address = reinterpret_cast<std::uintptr_t>(tensor.data);
  if (tensor.device.kind == DeviceKind::Cuda && address % size_of(tensor.dtype) != 0) {
    add_invalid_reason(operation, "the tensor does not begin at a multiple of its element's " +
                                      std::to_string(size_of(tensor.dtype)) +
                                      " bytes, as GPUs need. Copy it first.");
  }
}

void check_reduction(Operation& operation, const TensorView& tensor,
                     const AllreduceOptions& options) {
  const DType dtype = tensor.dtype;
  const std::string op(name_of(options.op));
  const bool is_order = options.op == ReduceOp::Min || options.op == ReduceOp::Max;
  if (dtype == DType::Bool && !is_order && options.op != ReduceOp::Custom) {
    add_invalid_reason(operation, "bool supports only Min (and), Max (or) and Custom, not " + op);
  }
  if (is_complex(dtype) && is_order) {
    add_invalid_reason(operation, op + " of " + std::string(name_of(dtype)) +
                                      " is not defined: complex numbers have no order. Reduce the "
                                      "real and imaginary parts, as of torch::view_as_real.");
  }
  if (options.op == ReduceOp::Adasum && is_integer(dtype)) {
    add_invalid_reason(operation, "Adasum is for floating and complex types, not " +
                                      std::string(name_of(dtype)) + ". Use Sum or Average.");
  }
  const bool is_complex_product = is_complex(dtype) && options.op == ReduceOp::Product;
  const bool is_cpu_only = options.op == ReduceOp::Custom || is_complex_product;
  if (tensor.device.kind == DeviceKind::Cuda && is_cpu_only) {
    add_invalid_reason(operation, op + " of " + std::string(name_of(dtype)) +
                                      " runs on CPU memory only. Copy the tensor to the CPU.");
  }
  if (!std::isfinite(options.prescale) || !std::isfinite(options.postscale)) {
    add_invalid_reason(operation, "a scale is not a finite number");
  }
  if (options.op == ReduceOp::Custom && (options.prescale != 1.0 || options.postscale != 1.0)) {
    add_invalid_reason(operation, "a Custom reduction takes no scales");
  }
}

void check_output(Operation& operation, const InputOutput& tensor, const ProcessSet& set) {
  const TensorView& input = tensor.input;
  const TensorView& output = tensor.output;
  if (input.device != output.device) {
    add_invalid_reason(operation, "the input and the output are on different devices");
  }
  if (input.dtype != output.dtype) {
    add_invalid_reason(operation, "the dtype of the output is " +
                                      std::string(name_of(output.dtype)) + ", that of the input " +
                                      std::string(name_of(input.dtype)));
  }
  if (output.data == nullptr && output.size_bytes() > 0) {
    add_invalid_reason(operation, "the output has elements but no memory");
  }
  std::vector<std::int64_t> expected = input.shape;
  if (operation.request.collective == Collective::ReduceScatter) {
    if (expected.empty()) {
      add_invalid_reason(operation, "a scalar has no rows to scatter. Give it one dimension, [1].");
      return;
    }
    expected.front() = scattered_rows(expected.front(), set.size(), set.rank());
  }
  if (output.shape != expected) {
    add_invalid_reason(operation, "the output does not have the shape of the result");
  }
}

UsedMemory used_memory(const Operation& operation, const InputOutput& tensor,
                       const ProcessSet& set) {
  if (!operation.request.invalid_reason.empty()) return {};  // the shapes may be
  const auto* const input = static_cast<const std::byte*>(tensor.input.data);
  const auto* const output = static_cast<const std::byte*>(tensor.output.data);
  UsedMemory used{.input = {input, tensor.input.size_bytes()},
                  .output = {output, tensor.output.size_bytes()}};
  switch (operation.request.collective) {
    case Collective::ReduceScatter: {
      const auto rows = static_cast<std::size_t>(tensor.input.shape.front());
      const std::size_t row_bytes = rows == 0 ? 0 : used.input.size() / rows;
      used.in_place = input + ops::piece_of(rows, set.size(), set.rank()).begin * row_bytes;
      break;
    }
    case Collective::AllToAll: break;
    default: used.in_place = input;
  }
  return used;
}

void check_overlap(Operation& operation, std::span<const UsedMemory> used) {
  if (!operation.request.invalid_reason.empty()) return;
  std::string problem = overlap_in(operation.request.collective, used);
  if (!problem.empty()) add_invalid_reason(operation, std::move(problem));
}

std::vector<std::int64_t> checked_splits(Operation& operation, std::int64_t rows,
                                         std::vector<std::int64_t> splits, int size) {
  const std::size_t ranks = static_cast<std::size_t>(size);
  if (splits.empty()) {
    if (rows % size != 0) {
      add_invalid_reason(operation, std::to_string(rows) + " rows do not divide evenly over " +
                                        std::to_string(size) + " ranks. Give splits.");
    }
    return std::vector<std::int64_t>(ranks, rows / size);
  }
  if (splits.size() != ranks) {
    add_invalid_reason(operation, "there are " + std::to_string(splits.size()) + " splits for " +
                                      std::to_string(size) + " ranks");
  }
  if (std::any_of(splits.begin(), splits.end(), [](std::int64_t split) { return split < 0; })) {
    add_invalid_reason(operation, "a split is negative");
  }
  constexpr std::int64_t kMaxSum = std::numeric_limits<std::int64_t>::max();
  std::int64_t sum = 0;
  bool overflows = false;
  for (const std::int64_t split : splits) {
    overflows |= split > kMaxSum - sum;
    sum = overflows ? kMaxSum : sum + std::max(split, std::int64_t{0});
  }
  if (overflows || sum != rows) {
    add_invalid_reason(operation,
                       "the splits add up to " + std::string(overflows ? "more than " : "") +
                           std::to_string(sum) + " rows, the tensor has " + std::to_string(rows));
  }
  return splits;
}

}  // namespace kolo::runtime

#pragma once

// Inputs of reductions that differ by rank, element and type, and their results.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "kolo/dtype.hpp"
#include "kolo/reduction.hpp"
#include "runtime/values.hpp"

namespace kolo::test {

inline constexpr ReduceOp kPlainOps[] = {ReduceOp::Average, ReduceOp::Sum,     ReduceOp::Min,
                                         ReduceOp::Max,     ReduceOp::Product, ReduceOp::BitAnd,
                                         ReduceOp::BitOr,   ReduceOp::BitXor};

/// Whether sums of what set_value() writes, in which the parts of a complex number depend on one
/// another, are all that the reduction needs.
inline bool is_tested(DType dtype, ReduceOp op) {
  if (op == ReduceOp::Average) return dtype != DType::Bool;
  if (is_bitwise(op) && tensor_place != nullptr) return false;  // GPUs have no kernels for them
  return is_defined(dtype, op) && !(is_complex(dtype) && op == ReduceOp::Product);
}

/// Element `i` of `rank`'s input to a reduction of any type; products of seven ranks fit an int8.
inline double reduce_input(DType dtype, ReduceOp op, int rank, std::size_t i) {
  const auto mixed = i + static_cast<std::size_t>(rank);
  if (dtype == DType::Bool) return mixed % 3 == 0 ? 1 : 0;
  const double sign = dtype != DType::UInt8 && mixed % 4 == 1 ? -1 : 1;
  return sign *
         (op == ReduceOp::Product ? 1 + static_cast<double>(mixed % 2) : input_value(rank, i));
}

/// `combine` on numbers that are integers.
template <class Combine>
double of_bits(double a, double b, Combine combine) {
  return static_cast<double>(combine(static_cast<std::int64_t>(a), static_cast<std::int64_t>(b)));
}

inline double reduce_expected(DType dtype, ReduceOp op, int size, std::size_t i) {
  double result = reduce_input(dtype, op, 0, i);
  for (int rank = 1; rank < size; ++rank) {
    const double next = reduce_input(dtype, op, rank, i);
    switch (op) {
      case ReduceOp::Min: result = std::min(result, next); break;
      case ReduceOp::Max: result = std::max(result, next); break;
      case ReduceOp::Product: result *= next; break;
      case ReduceOp::BitAnd: result = of_bits(result, next, std::bit_and()); break;
      case ReduceOp::BitOr: result = of_bits(result, next, std::bit_or()); break;
      case ReduceOp::BitXor: result = of_bits(result, next, std::bit_xor()); break;
      default: ADD_FAILURE() << name_of(op);
      case ReduceOp::Sum:
      case ReduceOp::Average: result += next; break;
    }
  }
  if (op != ReduceOp::Average) return result;
  result /= size;
  return is_integer(dtype) ? std::trunc(result) : result;
}

/// Sums of small integers are exact; only the division by the size rounds.
inline double reduce_tolerance(DType dtype, ReduceOp op) {
  if (op != ReduceOp::Average || is_integer(dtype)) return 0;
  return dtype == DType::BFloat16 ? 0x1p-4 : dtype == DType::Float16 ? 0x1p-7 : 1e-6;
}

/// `result` must equal `expected`, up to the rounding of an average. A sum that cancels has no
/// magnitude of its own, so the tolerance is relative to the largest input.
template <class Formula>
void expect_reduced(const Tensor& result, ReduceOp op, Formula expected, const std::string& what) {
  const double tolerance = 11 * reduce_tolerance(result.view().dtype, op);
  for (std::size_t i = 0; i < result.count(); ++i) {
    ASSERT_NEAR(result.at(i), expected(i), tolerance) << what << ", element " << i;
  }
}

}  // namespace kolo::test

#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kolo/dtype.hpp"

namespace kolo {

/// How the ranks' elements are combined. The numbers travel in control messages: append only.
///
/// Average divides the sum by the size of the process set; for integers it truncates toward zero.
/// For bool only Min (logical and) and Max (logical or) are defined.
///
/// Adasum (Maleki et al., "Scaling distributed training with adaptive summation", 2020) combines
/// two vectors a and b into a (1 - a·b / 2|a|²) + b (1 - a·b / 2|b|²): their sum where they are
/// orthogonal, their mean where they are parallel. Over a whole tensor at a time, of floating
/// types. Custom is one that the program brought; see CustomReduction.
enum class ReduceOp : std::uint8_t { Average, Sum, Min, Max, Product, Adasum, Custom };

std::string_view name_of(ReduceOp op);

/// What an Average divides by while some ranks have joined: the size of the process set, so that
/// they count as zeros (Horovod's rule), or the number of ranks that have not joined.
enum class JoinDivisor : std::uint8_t { World, Active };

/// A reduction that a program brings along (InitOptions::reductions, AllreduceOptions::custom). It
/// must be associative up to rounding; algorithms that keep the order of ranks apply it in that
/// order. Functions are called on any thread, for runs of elements of any length.
struct CustomReduction {
  std::string_view name;  ///< outlives the Runtime; the same on all ranks
  /// accumulator[i] = accumulator[i] op next[i].
  void (*combine)(DType dtype, const void* next, void* accumulator, std::size_t count);
  /// Fills `values` with the element that changes nothing: what a joined rank contributes.
  void (*fill_identity)(DType dtype, void* values, std::size_t count);
};

/// One reduction as an algorithm sees it: Average has been resolved into Sum and scales by then.
/// Every input is multiplied by `prescale` before, the result by `postscale` after the reduction;
/// integers are multiplied in double and truncated toward zero.
struct Reduction {
  ReduceOp op = ReduceOp::Sum;
  double prescale = 1.0;
  double postscale = 1.0;
  const CustomReduction* custom = nullptr;  ///< where op is Custom

  bool operator==(const Reduction&) const = default;
};

}  // namespace kolo

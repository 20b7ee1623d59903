#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kolo/dtype.hpp"

#pragma GCC visibility push(default)
namespace kolo {

/// How the elements of all ranks are combined. The values are part of the control protocol: append
/// only.
///
/// Average divides the sum by the size of the process set; for integers it truncates toward zero.
/// BitAnd, BitOr and BitXor are for integers and Bool. Bool supports these, Min (logical and), Max
/// (logical or) and Custom. Complex types support all except Min, Max and the bitwise ones; their
/// scales are real. Bitwise reductions, Adasum, Custom and complex Products run in CPU memory only.
///
/// Adasum (Maleki et al., "Scaling distributed training with adaptive summation", 2020) combines
/// vectors a and b into a (1 - a·b / 2|a|²) + b (1 - a·b / 2|b|²): their sum if they are
/// orthogonal, their mean if they are parallel. It works on whole tensors of floating types, and
/// treats complex tensors as vectors of their parts. Custom is a reduction that the program
/// supplies; see CustomReduction.
enum class ReduceOp : std::uint8_t {
  Average,
  Sum,
  Min,
  Max,
  Product,
  Adasum,
  Custom,
  BitAnd,
  BitOr,
  BitXor
};

/// Whether `op` combines bits rather than numbers.
constexpr bool is_bitwise(ReduceOp op) {
  return op == ReduceOp::BitAnd || op == ReduceOp::BitOr || op == ReduceOp::BitXor;
}

std::string_view name_of(ReduceOp op);

/// What Average divides by while some ranks have joined. World: the size of the process set, so
/// joined ranks count as zeros, as in Horovod. Active: the number of ranks that have not joined.
enum class JoinDivisor : std::uint8_t { World, Active };

/// A reduction that the program supplies (InitOptions::reductions, AllreduceOptions::custom).
///
/// It must be associative up to rounding. Algorithms that combine in rank order apply it in that
/// order. The functions may be called on any thread, with any number of elements.
struct CustomReduction {
  std::string_view name;  ///< outlives the Runtime; the same on all ranks
  /// Sets accumulator[i] = accumulator[i] op next[i].
  void (*combine)(DType dtype, const void* next, void* accumulator, std::size_t count);
  /// Fills `values` with the identity, which ranks that have joined contribute.
  void (*fill_identity)(DType dtype, void* values, std::size_t count);
};

/// A reduction as an algorithm sees it: Average is replaced with Sum and scales.
///
/// Every input is multiplied by `prescale`, the result by `postscale`; integers are multiplied in
/// double and truncated toward zero.
struct Reduction {
  ReduceOp op = ReduceOp::Sum;
  double prescale = 1.0;
  double postscale = 1.0;
  const CustomReduction* custom = nullptr;  ///< where op is Custom

  bool operator==(const Reduction&) const = default;
};

}  // namespace kolo
#pragma GCC visibility pop

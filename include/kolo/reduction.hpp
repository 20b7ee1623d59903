#pragma once

#include <cstdint>
#include <string_view>

namespace kolo {

/// How the ranks' elements are combined. The numbers travel in control messages: append only.
///
/// Average divides the sum by the size of the process set; for integers it truncates toward zero.
/// For bool only Min (logical and) and Max (logical or) are defined.
enum class ReduceOp : std::uint8_t { Average, Sum, Min, Max, Product };

std::string_view name_of(ReduceOp op);

/// One reduction as an algorithm sees it: Average has been resolved into Sum and scales by then.
/// Every input is multiplied by `prescale` before, the result by `postscale` after the reduction;
/// integers are multiplied in double and truncated toward zero.
struct Reduction {
  ReduceOp op = ReduceOp::Sum;
  double prescale = 1.0;
  double postscale = 1.0;

  bool operator==(const Reduction&) const = default;
};

}  // namespace kolo

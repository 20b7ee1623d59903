#pragma once

#include <limits>

namespace kolo::base {

/// `value * scale` in float64, truncated toward zero and clamped to T's range; NaN becomes 0. Used
/// to scale integers everywhere, on GPUs too. Exact if `scale` is 1.
template <class T>
constexpr T scale_integer(T value, double scale) {
  if (scale == 1.0) return value;
  const double scaled = static_cast<double>(value) * scale;
  if (scaled != scaled) return 0;  // NaN
  // The upper bound of a 64-bit type is no float64; its successor, a power of two, is.
  constexpr double kEnd = 2.0 * static_cast<double>((std::numeric_limits<T>::max() >> 1) + 1);
  if (scaled >= kEnd) return std::numeric_limits<T>::max();
  if (scaled <= static_cast<double>(std::numeric_limits<T>::min())) {
    return std::numeric_limits<T>::min();
  }
  return static_cast<T>(scaled);
}

}  // namespace kolo::base

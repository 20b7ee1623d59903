#pragma once

#include <bit>
#include <cstddef>
#include <vector>

#include "contract/reduce_case.hpp"

namespace kolo::test::adasum_test {

using Vector = std::vector<double>;

/// a (1 - a·b / 2|a|²) + b (1 - a·b / 2|b|²).
inline Vector combine_pair(const Vector& a, const Vector& b) {
  const auto dot = [](const Vector& x, const Vector& y) {
    long double sum = 0;
    for (std::size_t i = 0; i < x.size(); ++i) sum += static_cast<long double>(x[i]) * y[i];
    return sum;
  };
  const long double ab = dot(a, b);
  const auto weight = [&](const Vector& x) {
    const long double square = dot(x, x);
    return square == 0 ? 1 : 1 - ab / (2 * square);
  };
  const long double a_weight = weight(a);
  const long double b_weight = weight(b);
  Vector sum(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum[i] = static_cast<double>(a_weight * a[i] + b_weight * b[i]);
  }
  return sum;
}

inline Vector rounded(DType dtype, Vector values) {
  for (double& value : values) {
    std::byte element[8];
    set_value(dtype, element, 0, value);
    value = value_at(dtype, element, 0);
  }
  return values;
}

inline Vector scaled(DType dtype, Vector values, double factor) {
  for (double& value : values) value *= factor;
  return rounded(dtype, values);
}

/// Neighbours are folded until a power of two is left, then pairs are combined, then pairs of
/// these. Vectors are rounded where the algorithm stores them between steps.
inline Vector reference_adasum(DType dtype, std::vector<Vector> vectors,
                               const Reduction& reduction) {
  for (Vector& vector : vectors) vector = scaled(dtype, vector, reduction.prescale);
  const auto merge = [&](std::size_t first) {
    const auto second = vectors.begin() + static_cast<std::ptrdiff_t>(first) + 1;
    vectors[first] = rounded(dtype, combine_pair(vectors[first], *second));
    vectors.erase(second);
  };
  const std::size_t folded = vectors.size() - std::bit_floor(vectors.size());
  for (std::size_t i = 0; i < folded; ++i) merge(i);
  while (vectors.size() > 1) {
    for (std::size_t i = 0; i < vectors.size(); ++i) merge(i);
  }
  return scaled(dtype, vectors[0], reduction.postscale);
}

}  // namespace kolo::test::adasum_test

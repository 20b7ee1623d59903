#include "programs/adasum_reference.hpp"

#include <bit>
#include <cstddef>
#include <numeric>

namespace kolo::programs {
namespace {

using Vector = std::vector<double>;

Vector combine(const Vector& a, const Vector& b) {
  const auto dot = [](const Vector& x, const Vector& y) {
    return std::inner_product(x.begin(), x.end(), y.begin(), 0.0);
  };
  const auto weight = [&](const Vector& x) {
    const double square = dot(x, x);
    return square == 0 ? 1 : 1 - dot(a, b) / (2 * square);
  };
  const double a_weight = weight(a);
  const double b_weight = weight(b);
  Vector result(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) result[i] = a_weight * a[i] + b_weight * b[i];
  return result;
}

}  // namespace

Vector reference_adasum(std::vector<Vector> vectors) {
  const auto merge = [&](std::size_t first) {
    const auto second = vectors.begin() + static_cast<std::ptrdiff_t>(first) + 1;
    vectors[first] = combine(vectors[first], *second);
    vectors.erase(second);
  };
  const std::size_t folded = vectors.size() - std::bit_floor(vectors.size());
  for (std::size_t i = 0; i < folded; ++i) merge(i);
  while (vectors.size() > 1) {
    for (std::size_t i = 0; i < vectors.size(); ++i) merge(i);
  }
  return vectors[0];
}

}  // namespace kolo::programs

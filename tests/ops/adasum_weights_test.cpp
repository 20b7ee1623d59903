#include <cmath>
#include <cstddef>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "ops/kernels/adasum_kernels.hpp"

namespace kolo::ops::adasum_weights_test {

using Vector = std::vector<double>;

double dot(const Vector& a, const Vector& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

std::vector<double> weights_of(const std::vector<Vector>& vectors) {
  std::vector<double> products;
  for (const Vector& a : vectors) {
    for (const Vector& b : vectors) products.push_back(dot(a, b));
  }
  std::vector<double> weights(vectors.size(), -1);
  AdasumWeights(products.data(), static_cast<int>(vectors.size()), weights.data()).compute();
  return weights;
}

Vector adasum_of(const Vector& a, const Vector& b) {
  const auto weight = [&](const Vector& x) { return 1 - dot(a, b) / (2 * dot(x, x)); };
  Vector sum;
  for (std::size_t i = 0; i < a.size(); ++i) sum.push_back(weight(a) * a[i] + weight(b) * b[i]);
  return sum;
}

/// Folds neighbours until a power of two is left, then combines pairs, then pairs of these.
Vector adasum_of(std::vector<Vector> vectors) {
  const auto merge = [&](std::size_t first) {
    vectors[first] = adasum_of(vectors[first], vectors[first + 1]);
    vectors.erase(vectors.begin() + static_cast<std::ptrdiff_t>(first) + 1);
  };
  std::size_t cores = 1;
  while (2 * cores <= vectors.size()) cores *= 2;
  for (std::size_t i = 0; vectors.size() > cores; ++i) merge(i);
  while (vectors.size() > 1) {
    for (std::size_t i = 0; i < vectors.size(); ++i) merge(i);
  }
  return vectors.front();
}

TEST(AdasumWeightsTest, GiveWhatPairwiseCombinationGives) {
  for (std::size_t size = 1; size <= 17; ++size) {
    std::vector<Vector> vectors(size, Vector(9));
    for (std::size_t v = 0; v < size; ++v) {
      for (std::size_t i = 0; i < 9; ++i) {
        vectors[v][i] = std::sin(static_cast<double>(v * 9 + i * i + 1)) + 0.2;
      }
    }
    const Vector expected = adasum_of(vectors);
    const std::vector<double> weights = weights_of(vectors);
    for (std::size_t i = 0; i < 9; ++i) {
      double sum = 0;
      for (std::size_t v = 0; v < size; ++v) sum += weights[v] * vectors[v][i];
      EXPECT_NEAR(sum, expected[i], 1e-12) << size << " vectors, element " << i;
    }
  }
}

TEST(AdasumWeightsTest, OfVectorsWithoutLength) {
  const Vector zero{0, 0};
  const Vector some{3, -4};
  EXPECT_EQ(weights_of({zero, zero, zero}), (std::vector<double>{1, 1, 1}));
  EXPECT_EQ(weights_of({zero, some, zero})[1], 1);
  // The first two cancel; the third stays unchanged.
  const std::vector<double> weights = weights_of({some, {-3, 4}, {1, 1}});
  EXPECT_EQ(weights, (std::vector<double>{1.5, 1.5, 1}));
}

TEST(AdasumWeightsTest, NotANumberReachesTheResult) {
  EXPECT_TRUE(std::isnan(weights_of({{1, 2}, {std::nan(""), 1}, {3, 4}, {5, 6}}).back()));
}

}  // namespace kolo::ops::adasum_weights_test

// Orthonormalization of the columns of PowerSGD's factors.
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "extras/power_sgd.hpp"

namespace kolo::test::orthonormal_test {

using extras::orthonormalize;

template <class Number>
double dot(const std::vector<Number>& matrix, std::size_t columns, std::size_t a, std::size_t b) {
  double sum = 0;
  for (std::size_t i = 0; i < matrix.size(); i += columns) sum += matrix[i + a] * matrix[i + b];
  return sum;
}

template <class Number>
std::vector<Number> waves(std::size_t rows, std::size_t columns) {
  std::vector<Number> matrix;
  for (std::size_t i = 0; i < rows * columns; ++i) {
    matrix.push_back(static_cast<Number>(1e-3 * std::sin(0.7 * static_cast<double>(i * i))));
  }
  return matrix;
}

template <class Number>
void expect_orthonormal_columns() {
  constexpr std::size_t kColumns = 4;
  const std::vector<Number> before = waves<Number>(37, kColumns);
  std::vector<Number> matrix = before;
  orthonormalize(std::span(matrix), kColumns);
  const double roundoff = 8 * std::numeric_limits<Number>::epsilon();
  for (std::size_t a = 0; a < kColumns; ++a) {
    for (std::size_t b = 0; b <= a; ++b) {
      EXPECT_NEAR(dot(matrix, kColumns, a, b), a == b ? 1.0 : 0.0, roundoff) << a << ", " << b;
    }
  }
  // The first column keeps its direction.
  const double norm = std::sqrt(dot(before, kColumns, 0, 0));
  for (std::size_t i = 0; i < matrix.size(); i += kColumns) {
    EXPECT_NEAR(matrix[i], before[i] / norm, roundoff) << i;
  }
}

TEST(OrthonormalTest, Columns_AreOrthonormal) {
  expect_orthonormal_columns<float>();
  expect_orthonormal_columns<double>();
}

TEST(OrthonormalTest, DependentAndZeroColumns_BecomeZero) {
  // Columns (1, 2, 2) / 3, a multiple of it, zero, and (2, 1, -2) / 3, which is orthogonal to the
  // first.
  std::vector<float> matrix{3, 0.7F, 0, 2, 6, 1.4F, 0, 1, 6, 1.4F, 0, -2};
  orthonormalize(std::span(matrix), 4);
  const std::vector<float> expected{1, 0, 0, 2, 2, 0, 0, 1, 2, 0, 0, -2};
  for (std::size_t i = 0; i < matrix.size(); ++i) {
    EXPECT_NEAR(matrix[i], expected[i] / 3, 1e-6) << i;
  }
}

TEST(OrthonormalTest, ValuesThatAreNotFinite_MakeTheirColumnAndLaterOnesNaN) {
  for (const float value :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> matrix = waves<float>(5, 3);
    matrix[7] = value;  // column 1
    orthonormalize(std::span(matrix), 3);
    for (std::size_t i = 0; i < matrix.size(); ++i) {
      EXPECT_EQ(std::isnan(matrix[i]), i % 3 > 0) << i;
    }
  }
}

}  // namespace kolo::test::orthonormal_test

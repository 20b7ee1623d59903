#include "torch/power_sgd/orthonormal.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace kolo::tensors {
namespace {

using Column = std::vector<double>;

// A dependent column leaves rounding errors: a few units in the last place of its elements.
constexpr double kRoundings = 16;

double dot(const Column& a, const Column& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

void subtract_projection(Column& column, const Column& unit) {
  const double length = dot(column, unit);
  for (std::size_t i = 0; i < column.size(); ++i) column[i] -= length * unit[i];
}

}  // namespace

template <class Number>
void orthonormalize(std::span<Number> matrix, std::size_t columns) {
  constexpr double kDependent = kRoundings * std::numeric_limits<Number>::epsilon();
  const std::size_t rows = matrix.size() / columns;
  std::vector<Column> units;
  for (std::size_t k = 0; k < columns; ++k) {
    Column column(rows);
    for (std::size_t i = 0; i < rows; ++i) column[i] = matrix[i * columns + k];
    const double before = std::sqrt(dot(column, column));
    for (const Column& unit : units) subtract_projection(column, unit);
    const double norm = std::sqrt(dot(column, column));
    if (!std::isfinite(norm)) {
      std::ranges::fill(column, std::numeric_limits<double>::quiet_NaN());
    } else if (norm <= kDependent * before) {
      std::ranges::fill(column, 0.0);
    } else {
      for (double& value : column) value /= norm;
    }
    for (std::size_t i = 0; i < rows; ++i) matrix[i * columns + k] = static_cast<Number>(column[i]);
    units.push_back(std::move(column));
  }
}

template void orthonormalize(std::span<float> matrix, std::size_t columns);
template void orthonormalize(std::span<double> matrix, std::size_t columns);

}  // namespace kolo::tensors

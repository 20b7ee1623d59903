#include "runtime/values.hpp"

namespace kolo::test {

double input_value(int rank, std::size_t i, std::size_t salt) {
  return static_cast<double>((i * 3 + static_cast<std::size_t>(rank) * 5 + salt * 7) % 11);
}

double input_sum(int size, std::size_t i, std::size_t salt) {
  double sum = 0;
  for (int rank = 0; rank < size; ++rank) sum += input_value(rank, i, salt);
  return sum;
}

}  // namespace kolo::test

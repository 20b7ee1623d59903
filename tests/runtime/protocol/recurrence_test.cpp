#include <cstdint>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/protocol/history.hpp"

namespace kolo::runtime::recurrence_test {

/// Computed by comparing element by element.
std::uint32_t length_of(const Recurrence& sequence, std::size_t distance) {
  std::uint32_t length = 0;
  while (distance + length < sequence.size() &&
         sequence[sequence.size() - 1 - length] ==
             sequence[sequence.size() - 1 - distance - length]) {
    ++length;
  }
  return length;
}

TEST(RecurrenceTest, Measure_FindsEveryLength) {
  std::mt19937 random(1);
  using Symbols = std::uniform_int_distribution<std::uint32_t>;
  for (const std::uint32_t symbols : {1u, 2u, 3u, 50u}) {
    for (std::size_t size = 0; size < 60; ++size) {
      Recurrence sequence;
      for (std::size_t i = 0; i < size; ++i) sequence.append(Symbols(1, symbols)(random));
      if (size % 3 == 2) sequence.drop_oldest(size / 3);
      if (size % 3 == 1) sequence.replace(1, 2, sequence.size());
      sequence.measure();
      for (std::size_t distance = 1; distance < size + 2; ++distance) {
        EXPECT_EQ(sequence.length_at(distance), length_of(sequence, distance))
            << size << " of " << symbols << " at " << distance;
      }
    }
  }
}

}  // namespace kolo::runtime::recurrence_test

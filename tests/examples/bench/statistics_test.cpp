#include "common/statistics.hpp"

#include <vector>

#include <gtest/gtest.h>

#include "common/digest.hpp"

namespace statistics_test {

std::vector<double> falling(int count) {
  std::vector<double> values;
  for (int i = count; i >= 1; --i) values.push_back(i);
  return values;
}

TEST(Median, OddAndEvenCounts) {
  EXPECT_EQ(examples::median({7}), 7);
  EXPECT_EQ(examples::median({3, 1, 2}), 2);
  EXPECT_EQ(examples::median({4, 1, 3, 2}), 2.5);
}

// The ranks of order that tables of the sign test give for 95 %.
TEST(MedianInterval, EndsAtTheOrderStatisticsOfTheSignTest) {
  struct Case {
    int count, low;
  };
  for (const Case tested : {Case{1, 1}, Case{5, 1}, Case{6, 1}, Case{8, 1}, Case{9, 2}, Case{11, 2},
                            Case{12, 3}, Case{15, 4}, Case{20, 6}, Case{25, 8}, Case{100, 40}}) {
    const examples::Interval interval = examples::median_interval(falling(tested.count));
    EXPECT_EQ(interval.low, tested.low) << tested.count;
    EXPECT_EQ(interval.high, tested.count + 1 - tested.low) << tested.count;
  }
}

TEST(Digest, IsFnv1a) {
  examples::Digest digest;
  EXPECT_EQ(digest.hex(), "cbf29ce484222325");
  digest.add("foo");
  digest.add("bar");
  EXPECT_EQ(digest.hex(), "85944171f73967e8");
}

}  // namespace statistics_test

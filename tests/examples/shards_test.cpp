#include "mnist/shards.hpp"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace mnist {
namespace shards_test {

TEST(ShardsTest, EvenShardsDifferByOneAtMost) {
  EXPECT_EQ(shard_bounds(10, 4, 0), (std::vector<std::int64_t>{0, 3, 5, 8, 10}));
  EXPECT_EQ(shard_bounds(2, 3, 0), (std::vector<std::int64_t>{0, 1, 1, 2}));
}

TEST(ShardsTest, TheLastIsLargerByTheImbalance) {
  EXPECT_EQ(shard_bounds(90, 2, 0.25), (std::vector<std::int64_t>{0, 40, 90}));
  EXPECT_EQ(shard_bounds(60, 3, 2), (std::vector<std::int64_t>{0, 10, 30, 60}));
}

TEST(ShardsTest, OneRankHasAll) {
  EXPECT_EQ(shard_bounds(7, 1, 5), (std::vector<std::int64_t>{0, 7}));
}

}  // namespace shards_test
}  // namespace mnist

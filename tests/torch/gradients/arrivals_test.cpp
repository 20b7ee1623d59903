#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

#include "train/gradients/bucket_pipeline.hpp"

namespace kolo::test::arrivals_test {

using train::Arrivals;
using train::Bucket;

/// Parameters 0 and 2 in the first bucket, 1 in the second.
std::vector<Bucket> two_buckets() {
  std::vector<Bucket> buckets(2);
  buckets[0].members = {{0, 0}, {2, 64}};
  buckets[1].members = {{1, 128}};
  return buckets;
}

TEST(ArrivalsTest, Bucket_IsCompleteWithItsLastGradient) {
  Arrivals arrivals(two_buckets(), 3, /*passes=*/1, /*by_pass=*/false);
  EXPECT_FALSE(arrivals.any());
  EXPECT_FALSE(arrivals.add(2));
  EXPECT_FALSE(arrivals.is_complete(0));
  EXPECT_TRUE(arrivals.add(1));
  EXPECT_TRUE(arrivals.add(0));
  EXPECT_TRUE(arrivals.is_complete(0));
  EXPECT_EQ(arrivals.bucket_of(2), 0U);
  EXPECT_EQ(arrivals.bucket_of(1), 1U);
}

TEST(ArrivalsTest, SeveralPasses_AllOfThemAreNeeded) {
  Arrivals arrivals(two_buckets(), 3, /*passes=*/2, /*by_pass=*/false);
  EXPECT_FALSE(arrivals.add(1));
  EXPECT_TRUE(arrivals.add(1));
  for (const std::size_t parameter : std::vector<std::size_t>{0, 2, 2})
    EXPECT_FALSE(arrivals.add(parameter));
  EXPECT_TRUE(arrivals.add(0));
  EXPECT_EQ(arrivals.count(0), 2);
}

TEST(ArrivalsTest, ByPass_ASecondGradientOfTheSamePassCountsOnce) {
  Arrivals arrivals(two_buckets(), 3, /*passes=*/2, /*by_pass=*/true);
  EXPECT_FALSE(arrivals.add(0));
  EXPECT_FALSE(arrivals.add(0));  // ahead of parameter 2: adds to the pending gradient
  EXPECT_TRUE(arrivals.is_pending(0));
  EXPECT_TRUE(arrivals.add(2));
  arrivals.take(0);
  EXPECT_FALSE(arrivals.is_pending(0));
  EXPECT_FALSE(arrivals.is_complete(0));
  EXPECT_FALSE(arrivals.add(2));
  EXPECT_TRUE(arrivals.add(0));
  EXPECT_EQ(arrivals.count(0), 3);
}

TEST(ArrivalsTest, DroppedGradients_AreWaitedForAgain) {
  Arrivals arrivals(two_buckets(), 3, /*passes=*/2, /*by_pass=*/false);
  arrivals.add(1);
  arrivals.drop(1);
  EXPECT_EQ(arrivals.count(1), 0);
  EXPECT_FALSE(arrivals.any());
  EXPECT_FALSE(arrivals.add(1));
  EXPECT_TRUE(arrivals.add(1));
  arrivals.add(0);
  arrivals.add(0);
  arrivals.drop(0);
  for (const std::size_t parameter : std::vector<std::size_t>{2, 2, 0})
    EXPECT_FALSE(arrivals.add(parameter));
  EXPECT_TRUE(arrivals.add(0));
}

TEST(ArrivalsTest, ByPass_ADroppedGradientIsOneWhateverItWasMadeOf) {
  Arrivals arrivals(two_buckets(), 3, /*passes=*/3, /*by_pass=*/true);
  arrivals.add(0);
  arrivals.add(0);
  arrivals.drop(0);
  EXPECT_FALSE(arrivals.add(2));
  EXPECT_TRUE(arrivals.add(0));
}

TEST(ArrivalsTest, Restart_ForgetsAll) {
  Arrivals arrivals(two_buckets(), 3, /*passes=*/1, /*by_pass=*/false);
  arrivals.add(0);
  arrivals.add(1);
  arrivals.restart();
  EXPECT_FALSE(arrivals.any());
  EXPECT_FALSE(arrivals.is_complete(1));
  EXPECT_FALSE(arrivals.add(2));
  EXPECT_TRUE(arrivals.add(0));
}

}  // namespace kolo::test::arrivals_test

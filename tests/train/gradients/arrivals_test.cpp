#include "train/gradients/arrivals.hpp"

#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

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

TEST(ArrivalsTest, ByPass_ASecondGradientOfTheSamePassCountsOnce) {
  Arrivals arrivals(two_buckets(), 3, /*passes=*/2, /*by_pass=*/true);
  EXPECT_FALSE(arrivals.add(0));
  EXPECT_FALSE(arrivals.add(0));  // ahead of parameter 2: adds to the pending gradient
  EXPECT_TRUE(arrivals.is_pending(0));
  EXPECT_TRUE(arrivals.add(2));
  arrivals.take(0, [](std::size_t) { return true; });
  EXPECT_FALSE(arrivals.is_pending(0));
  EXPECT_FALSE(arrivals.is_complete(0));
  EXPECT_FALSE(arrivals.add(2));
  EXPECT_TRUE(arrivals.add(0));
  EXPECT_EQ(arrivals.count(0), 3);
}

TEST(ArrivalsTest, ByPass_ADroppedGradientIsOneWhateverItWasMadeOf) {
  Arrivals arrivals(two_buckets(), 3, /*passes=*/3, /*by_pass=*/true);
  arrivals.add(0);
  arrivals.add(0);
  arrivals.drop(0);
  EXPECT_FALSE(arrivals.add(2));
  EXPECT_TRUE(arrivals.add(0));
}

TEST(ArrivalsTest, DroppedGradientsAreAwaitedAgain) {
  Arrivals arrivals(two_buckets(), 3, /*passes=*/3, /*by_pass=*/false);
  arrivals.add(1);
  arrivals.add(1);
  arrivals.drop(1);
  EXPECT_FALSE(arrivals.add(1));
  EXPECT_FALSE(arrivals.add(1));
  EXPECT_TRUE(arrivals.add(1));
}

TEST(ArrivalsTest, AGradientThatDoesNotCount_HasArrivedOnceItsBucketIsSubmitted) {
  Arrivals arrivals(two_buckets(), 3, /*passes=*/1, /*by_pass=*/false);
  arrivals.add(0);
  arrivals.take(0, [](std::size_t parameter) { return parameter != 1; });
  EXPECT_TRUE(arrivals.has(2));
  EXPECT_EQ(arrivals.count(2), 0);
  EXPECT_FALSE(arrivals.has(1));
  arrivals.drop(2);
  EXPECT_FALSE(arrivals.has(2));
  EXPECT_TRUE(arrivals.has(0));
}

}  // namespace kolo::test::arrivals_test

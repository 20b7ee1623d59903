#include "train/buckets/bucket_plan.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace kolo::test::bucket_plan_test {

using train::ArrivalOrder;
using train::Bucket;
using train::BucketPlan;
using train::PlannedParameter;
using Places = std::vector<std::size_t>;

constexpr std::size_t kBucketBytes = 1024;

/// Float32 parameters of these element counts.
std::vector<PlannedParameter> parameters_of(const std::vector<std::size_t>& counts) {
  std::vector<PlannedParameter> parameters;
  for (const std::size_t count : counts) parameters.push_back({.count = count});
  return parameters;
}

Places first_to_last(std::size_t count) {
  Places order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  return order;
}

std::vector<Places> members_of(const BucketPlan& plan) {
  std::vector<Places> members;
  for (const Bucket& bucket : plan.buckets) {
    members.emplace_back();
    for (const Bucket::Member& member : bucket.members) members.back().push_back(member.parameter);
  }
  return members;
}

TEST(BucketPlanTest, FillsBucketsInOrder_TheFirstToAQuarter) {
  // 64 elements are 256 bytes: the first bucket is closed after one, the next takes four.
  const auto plan = plan_buckets(parameters_of(Places(7, 64)), {6, 5, 4, 3, 2, 1, 0}, kBucketBytes);
  EXPECT_EQ(members_of(plan), (std::vector<Places>{{6}, {5, 4, 3, 2}, {1, 0}}));
}

TEST(BucketPlanTest, AParameterLargerThanABucket_HasItsOwn) {
  const auto plan = plan_buckets(parameters_of({64, 1000, 16}), first_to_last(3), kBucketBytes);
  EXPECT_EQ(members_of(plan), (std::vector<Places>{{0}, {1}, {2}}));
  EXPECT_EQ(plan.buckets[1].gradient_count(), 1008U);  // 4000 bytes, in multiples of 64
}

TEST(BucketPlanTest, Types_ShareNoBucket) {
  auto parameters = parameters_of({8, 8, 8});
  parameters[1].dtype = DType::Float64;
  const auto plan = plan_buckets(parameters, first_to_last(3), kBucketBytes);
  EXPECT_EQ(members_of(plan), (std::vector<Places>{{0, 2}, {1}}));
  EXPECT_EQ(plan.buckets[1].dtype, DType::Float64);
}

TEST(BucketPlanTest, CompressedParametersAndOthers_ShareNoBucket) {
  auto parameters = parameters_of({8, 8, 8, 8});
  parameters[1].is_compressed = parameters[2].is_compressed = false;
  parameters[0].group = parameters[1].group = 5;
  const auto plan = plan_buckets(parameters, first_to_last(4), kBucketBytes);
  EXPECT_EQ(members_of(plan), (std::vector<Places>{{0}, {1}, {2}, {3}}));
  std::vector<bool> are_compressed;
  for (const Bucket& bucket : share_slots(widen(plan, DType::Float64), 2).buckets) {
    are_compressed.push_back(bucket.is_compressed);
  }
  EXPECT_EQ(are_compressed, (std::vector<bool>{true, false, false, true}));
}

TEST(BucketPlanTest, Group_IsOneBucketOfAnySize) {
  auto parameters = parameters_of({600, 8, 600, 8});
  parameters[0].group = parameters[2].group = 0;
  const auto plan = plan_buckets(parameters, first_to_last(4), kBucketBytes);
  EXPECT_EQ(members_of(plan), (std::vector<Places>{{0, 2}, {1, 3}}));
}

TEST(BucketPlanTest, GroupThatMayBeSplit_FillsBucketsOfItsOwn) {
  auto parameters = parameters_of({64, 8, 128, 192, 8});
  for (const std::size_t i : Places{0, 2, 3}) {
    parameters[i].group = 0;
    parameters[i].may_split_group = true;
  }
  const auto plan = plan_buckets(parameters, first_to_last(5), kBucketBytes);
  EXPECT_EQ(members_of(plan), (std::vector<Places>{{0, 2}, {1, 4}, {3}}));
}

TEST(BucketPlanTest, MembersAndFlagsDoNotOverlap_ShardsAreEqualMultiplesOf64Bytes) {
  for (const std::size_t shards : Places{1, 2, 3, 4, 7}) {
    const auto counts = Places{1, 15, 16, 17, 300, 3};
    const auto plan = plan_buckets(parameters_of(counts), first_to_last(6), kBucketBytes, shards);
    std::size_t end = 0;
    for (const Bucket& bucket : plan.buckets) {
      EXPECT_EQ(bucket.offset, end);
      for (const Bucket::Member& member : bucket.members) {
        EXPECT_GE(member.offset, end);
        EXPECT_EQ(member.offset % 64, 0U);
        end = member.offset + counts[member.parameter] * sizeof(float);
      }
      EXPECT_LE(end, bucket.flags_offset);
      EXPECT_EQ((bucket.flags_offset - bucket.offset) % (64 * shards), 0U) << shards;
      const bool is_first = &bucket == plan.buckets.data();
      EXPECT_EQ(bucket.has_digest, is_first);
      EXPECT_EQ(bucket.flag_count(), bucket.members.size() + Bucket::kRankFlags +
                                         (is_first ? 2 * Bucket::kDigestBits : 0));
      EXPECT_LE(bucket.flags_offset + bucket.flag_count() * sizeof(float),
                bucket.offset + bucket.size_bytes);
      end = bucket.offset + bucket.size_bytes;
    }
    EXPECT_EQ(plan.size_bytes, end);
  }
}

/// Whole parameters of these element counts.
std::vector<PlannedParameter> whole_parameters_of(const Places& counts) {
  std::vector<PlannedParameter> parameters = parameters_of(counts);
  for (PlannedParameter& parameter : parameters) parameter.is_whole = true;
  return parameters;
}

TEST(BucketPlanTest, WholeParameters_LieInOneShardEach_AndDoNotOverlap) {
  const auto counts = Places{48, 16, 64, 64, 1, 130, 16, 48, 64, 64, 0, 3};
  for (const std::size_t shards : Places{1, 2, 3, 4, 7}) {
    const auto plan = plan_buckets(whole_parameters_of(counts), first_to_last(counts.size()),
                                   kBucketBytes, shards, 128);
    std::vector<std::pair<std::size_t, std::size_t>> ranges;
    for (const Bucket& bucket : plan.buckets) {
      const std::size_t shard = bucket.shard_bytes(shards);
      EXPECT_EQ(shard % 128, 0U);
      for (const Bucket::Member& member : bucket.members) {
        const std::size_t bytes = counts[member.parameter] * sizeof(float);
        const std::size_t begin = member.offset - bucket.offset;
        EXPECT_EQ(begin % 64, 0U);
        EXPECT_LE(begin % shard + bytes, shard) << member.parameter << " of " << shards;
        EXPECT_LE(begin + bytes, bucket.gradient_count() * sizeof(float));
        if (bytes > 0) ranges.emplace_back(member.offset, member.offset + bytes);
      }
    }
    std::ranges::sort(ranges);
    for (std::size_t i = 1; i < ranges.size(); ++i)
      EXPECT_LE(ranges[i - 1].second, ranges[i].first);
  }
}

TEST(BucketPlanTest, WholeParameters_FillABucketUntilTheyDivideWell) {
  // The matrices of transformer blocks: 4 + 4 + 3 + 1 times 64 elements.
  Places counts;
  for (int block = 0; block < 6; ++block) counts.insert(counts.end(), {192, 64, 256, 256});
  const auto plan =
      plan_buckets(whole_parameters_of(counts), first_to_last(counts.size()), kBucketBytes, 4);
  EXPECT_GT(plan.buckets.size(), 1U);
  const std::size_t all = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  std::size_t planned = 0;
  for (const Bucket& bucket : plan.buckets) planned += bucket.gradient_count();
  EXPECT_LE(planned * 5, all * 6);  // the last one may divide worse
  // One alone cannot be divided.
  EXPECT_EQ(
      plan_buckets(whole_parameters_of({64}), {0}, kBucketBytes, 4).buckets[0].gradient_count(),
      256U);
}

TEST(BucketPlanTest, WholeParametersWithBucketsOfTheirOwn_HaveDifferentOwners) {
  const auto plan = plan_buckets(whole_parameters_of({64, 64, 64, 64}), first_to_last(4), 64, 4);
  Places owners;
  for (const Bucket& bucket : plan.buckets) {
    ASSERT_EQ(bucket.members.size(), 1U);
    owners.push_back((bucket.members[0].offset - bucket.offset) / bucket.shard_bytes(4));
  }
  EXPECT_EQ(owners, (Places{0, 1, 2, 3}));
}

TEST(BucketPlanTest, WholeParametersAndPieces_ShareNoBucket) {
  auto parameters = parameters_of({8, 8, 8});
  parameters[1].is_whole = true;
  const auto plan = plan_buckets(parameters, first_to_last(3), kBucketBytes, 2);
  EXPECT_EQ(members_of(plan), (std::vector<Places>{{0, 2}, {1}}));
  EXPECT_TRUE(plan.buckets[1].is_whole);
}

TEST(BucketPlanTest, SharedSlots_BucketsTakeTurnsInTheLargestOnesMemory) {
  const auto own = plan_buckets(parameters_of({64, 1000, 16, 800, 300}), first_to_last(5), 512, 2);
  const BucketPlan shared = share_slots(own, 3);
  std::size_t largest = 0;
  for (const Bucket& bucket : own.buckets) largest = std::max(largest, bucket.size_bytes);
  EXPECT_EQ(shared.size_bytes, 3 * largest);
  ASSERT_EQ(shared.buckets.size(), own.buckets.size());
  for (std::size_t i = 0; i < own.buckets.size(); ++i) {
    const Bucket& before = own.buckets[i];
    const Bucket& after = shared.buckets[i];
    EXPECT_EQ(after.offset, i % 3 * largest) << i;
    EXPECT_EQ(after.flags_offset - after.offset, before.flags_offset - before.offset);
    for (std::size_t m = 0; m < before.members.size(); ++m) {
      EXPECT_EQ(after.members[m].offset - after.offset, before.members[m].offset - before.offset);
    }
  }
  EXPECT_EQ(share_slots(plan_buckets(parameters_of({8}), {0}, 512), 3).size_bytes, 384U);
}

TEST(BucketPlanTest, DefaultSize_IsASixteenthWithinLimits) {
  EXPECT_EQ(train::default_bucket_bytes(parameters_of({1600, 1600}), false), 2U * 6400 / 16);
  EXPECT_EQ(train::default_bucket_bytes(parameters_of({1600, 1600}), true), 4U << 20);
  for (const bool is_on_gpu : {false, true}) {
    EXPECT_EQ(train::default_bucket_bytes(parameters_of({std::size_t{1} << 30}), is_on_gpu),
              25U << 20);
  }
}

TEST(ArrivalOrderTest, Completed_KeepsTheFirstOccurrenceAndAppendsTheRestLastToFirst) {
  EXPECT_EQ(ArrivalOrder::complete({2, 0, 2}, 5), (Places{2, 0, 4, 3, 1}));
  EXPECT_EQ(ArrivalOrder::complete({}, 3), (Places{2, 1, 0}));
}

}  // namespace kolo::test::bucket_plan_test

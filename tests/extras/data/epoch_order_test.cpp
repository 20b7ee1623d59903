#include "extras/data/epoch_order.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/error.hpp"
#include "runtime/runtimes.hpp"

namespace kolo::test::epoch_order_test {

using extras::EpochOrder;
using Samples = std::vector<std::size_t>;

Samples sorted(Samples samples) {
  std::ranges::sort(samples);
  return samples;
}

Samples first(std::size_t count) {
  Samples all(count);
  std::iota(all.begin(), all.end(), std::size_t{0});
  return all;
}

/// Distinct lengths in no particular order.
Samples lengths(std::size_t count) {
  Samples all;
  for (std::size_t i = 0; i < count; ++i) all.push_back(7 + i * 37 % 1009);
  return all;
}

TEST(EpochOrderTest, Orders_AreTheSameOnEveryMachine) {
  // Expected values were computed in another language from the generator's definition.
  EXPECT_EQ(extras::shuffled(10).of(7, 0), (Samples{1, 2, 3, 8, 5, 4, 0, 7, 6, 9}));
  EXPECT_EQ(extras::shuffled(10).of(7, 1), (Samples{9, 3, 8, 4, 6, 5, 1, 0, 2, 7}));
  EXPECT_EQ(extras::shuffled(10).of(8, 0), (Samples{3, 7, 1, 8, 2, 4, 9, 0, 5, 6}));
  const EpochOrder weighted = extras::weighted({1, 0, 2.5, 0.5}, 12);
  EXPECT_EQ(weighted.of(7, 0), (Samples{2, 2, 3, 0, 2, 2, 2, 0, 2, 2, 0, 2}));
  EXPECT_EQ(weighted.of(7, 1), (Samples{2, 0, 0, 0, 2, 0, 2, 2, 3, 0, 0, 3}));
  const EpochOrder grouped = extras::grouped({5, 3, 9, 1, 7, 7, 2, 8, 4, 6, 0}, 2, true);
  EXPECT_EQ(grouped.of(7, 0), (Samples{2, 5, 0, 3, 1, 6, 7, 8, 4, 10, 9}));
  EXPECT_EQ(grouped.of(7, 1), (Samples{6, 3, 9, 10, 4, 0, 5, 8, 2, 1, 7}));
}

TEST(EpochOrderTest, ByIndex_IsTheSameEveryEpoch) {
  EXPECT_EQ(extras::by_index(4).of(1, 0), first(4));
  EXPECT_EQ(extras::by_index(4).of(2, 9), first(4));
}

TEST(EpochOrderTest, Shuffled_HasEverySampleOnce) {
  for (std::size_t count = 0; count <= 50; ++count) {
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
      EXPECT_EQ(sorted(extras::shuffled(count).of(3, epoch)), first(count)) << count;
    }
  }
}

TEST(EpochOrderTest, SeedsAndEpochs_AllHaveOtherOrders) {
  std::set<Samples> orders;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    for (std::int64_t epoch = 0; epoch < 20; ++epoch) {
      orders.insert(extras::shuffled(30).of(seed, epoch));
    }
  }
  EXPECT_EQ(orders.size(), 400U);
}

TEST(EpochOrderTest, Shuffled_BringsEverySampleToEveryPlaceEquallyOften) {
  constexpr std::size_t kCount = 5;
  constexpr std::int64_t kEpochs = 10000;
  std::vector<std::vector<int>> times(kCount, std::vector<int>(kCount));
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const Samples order = extras::shuffled(kCount).of(1, epoch);
    for (std::size_t place = 0; place < kCount; ++place) ++times[order[place]][place];
  }
  for (const auto& places : times) {
    for (const int count : places) EXPECT_NEAR(count, 2000, 160);  // four standard deviations
  }
}

TEST(EpochOrderTest, Weighted_DrawsAsOftenAsTheWeightsSay) {
  const std::vector<double> weights{0, 3, 0, 1, 4, 0};
  std::vector<int> times(weights.size());
  for (const std::size_t sample : extras::weighted(weights, 8000).of(2, 5)) ++times[sample];
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double expected = weights[i] * 1000;
    EXPECT_NEAR(times[i], expected, weights[i] == 0 ? 0 : 180) << i;  // four standard deviations
  }
}

TEST(EpochOrderTest, Weighted_RefusesWhatIsNoWeight) {
  const auto refused = [](const std::vector<double>& weights) {
    return text_thrown_by<InvalidArgument>([&] { extras::weighted(weights, 1); });
  };
  expect_contains(refused({1, -2}), "the weight of sample 1 is -2");
  expect_contains(refused({std::numeric_limits<double>::quiet_NaN()}), "the weight of sample 0");
  expect_contains(refused({1, std::numeric_limits<double>::infinity()}), "add up to inf");
  expect_contains(refused({0, 0}), "the weights of 2 samples add up to 0");
  expect_contains(refused({}), "the weights of 0 samples");
}

TEST(EpochOrderTest, Grouped_HasEverySampleOnceAndOtherGroupsInEveryEpoch) {
  for (const std::size_t count : {0U, 1U, 7U, 8U, 50U, 61U, 1000U}) {
    const EpochOrder order = extras::grouped(lengths(count), 8, true);
    EXPECT_EQ(sorted(order.of(3, 0)), first(count));
    EXPECT_EQ(sorted(order.of(3, 1)), first(count));
  }
  const EpochOrder order = extras::grouped(lengths(64), 8, true);
  std::set<Samples> groups;
  for (std::int64_t epoch = 0; epoch < 10; ++epoch) {
    const Samples samples = order.of(3, epoch);
    for (auto begin = samples.begin(); begin < samples.end(); begin += 8) {
      groups.insert(sorted({begin, begin + 8}));
    }
  }
  EXPECT_EQ(groups.size(), 80U);
}

TEST(EpochOrderTest, Grouped_StepsHaveSimilarLengthsAndRanksEqualOnes) {
  constexpr std::size_t kStep = 24;
  const Samples length = lengths(1000);
  const Samples order = extras::grouped(length, kStep, true).of(3, 1);
  double spread = 0;
  const std::size_t steps = order.size() / kStep;
  for (std::size_t step = 0; step < steps; ++step) {
    const auto at = [&](std::size_t place) { return length[order[step * kStep + place]]; };
    const std::size_t widest = at(0) - at(kStep - 1);
    spread += static_cast<double>(widest) / static_cast<double>(steps);
    for (const std::size_t ranks : {2U, 3U, 4U, 8U}) {
      Samples totals(ranks);
      for (std::size_t place = 0; place < kStep; ++place) totals[place % ranks] += at(place);
      EXPECT_LE(std::ranges::max(totals) - std::ranges::min(totals), widest) << ranks;
    }
  }
  EXPECT_LT(spread, 250);  // lengths are 7 to 1015; a shuffled step spans most of that
}

TEST(EpochOrderTest, GroupedWithoutShuffling_IsByLength) {
  EXPECT_EQ(extras::grouped({5, 9, 1, 9, 7}, 2, false).of(1, 1), (Samples{1, 3, 4, 0, 2}));
  expect_contains(text_thrown_by<InvalidArgument>([] { extras::grouped({1}, 0, true); }),
                  "step_samples is 0");
}

TEST(EpochOrderTest, Names_DistinguishOrders) {
  const std::set<std::string> names{extras::by_index(3).name,
                                    extras::shuffled(3).name,
                                    extras::weighted({1, 2, 3}, 3).name,
                                    extras::weighted({1, 3, 2}, 3).name,
                                    extras::grouped({1, 2, 3}, 2, true).name,
                                    extras::grouped({1, 2, 3}, 3, true).name,
                                    extras::grouped({1, 2, 4}, 2, true).name,
                                    extras::grouped({1, 2, 3}, 2, false).name};
  EXPECT_EQ(names.size(), 8U);
  EXPECT_EQ(extras::shuffled(3).name, extras::shuffled(4).name);  // the size is stored separately
}

}  // namespace kolo::test::epoch_order_test

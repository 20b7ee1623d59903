// The algorithms in windows of minimal size, and in windows that are still being read.

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "contract/algorithm_contract.hpp"
#include "kolo/error.hpp"
#include "ops/registry.hpp"
#include "ops/steps/reduction_plan.hpp"

namespace kolo::test::window_segments_test {

TEST(WindowTest, TooSmallSegment_NamesTheSizeNeeded) {
  const ops::Registry registry;
  run_on_ranks(2, 64, 1, [&](const Rank& rank) {
    std::vector<float> values(4);
    auto* buffer = reinterpret_cast<std::byte*>(values.data());
    const std::vector<std::size_t> counts{1, 1};
    int checked = 0;
    for (const Algorithm& algorithm : registry.algorithms()) {
      if (algorithm.needs != Needs::Window) continue;
      Task task = algorithm.run({.window = &rank.window,
                                 .input = buffer,
                                 .output = buffer + 2 * sizeof(float),
                                 .count = 2,
                                 .counts = counts,
                                 .send_counts = counts,
                                 .receive_counts = counts,
                                 .segment_bytes = 64});
      try {
        task.poll();
        ADD_FAILURE() << algorithm.name << " runs in 64 bytes";
      } catch (const InvalidArgument& error) {
        const std::string text = error.what();
        EXPECT_NE(text.find("of 64 bytes"), std::string::npos) << text;
      }
      ++checked;
    }
    EXPECT_EQ(checked, 6);
  });
}

/// Data of a staged operation in the window is still being read when the next operation starts.
TEST(WindowTest, ZeroCopyAfterStaged_LeavesTheSlotsAlone) {
  const ops::Registry registry;
  const std::size_t size = 4;
  const std::vector<std::size_t> counts(size, 2);
  std::vector<std::vector<std::uint64_t>> inputs(size, std::vector<std::uint64_t>(2 * size));
  std::vector<std::byte*> peers;
  for (auto& input : inputs) peers.push_back(reinterpret_cast<std::byte*>(input.data()));
  run_on_ranks(static_cast<int>(size), kContractWindowBytes, 1, [&](const Rank& rank) {
    std::mt19937_64 random = random_of(rank);
    const auto self = static_cast<std::size_t>(rank.rank);
    std::vector<std::uint64_t> received(2 * size);
    for (std::uint64_t round = 1; round <= 300; ++round) {
      std::vector<std::uint64_t> values(8, rank.rank == 1 ? 1000 * round : 0);
      finish(registry.find(Collective::Broadcast, "window")
                 .run({.window = &rank.window,
                       .output = reinterpret_cast<std::byte*>(values.data()),
                       .count = values.size(),
                       .dtype = DType::Int64,
                       .root = 1,
                       .segment_bytes = 64}),
             rank, random);
      EXPECT_EQ(values, std::vector<std::uint64_t>(8, 1000 * round)) << "rank " << rank.rank;
      std::fill(inputs[self].begin(), inputs[self].end(), 10 * round + self);
      finish(registry.find(Collective::AllToAll, "zero_copy")
                 .run({.window = &rank.window,
                       .peer_buffers = peers,
                       .input = peers[self],
                       .output = reinterpret_cast<std::byte*>(received.data()),
                       .dtype = DType::Int64,
                       .send_counts = counts,
                       .receive_counts = counts,
                       .segment_bytes = 64}),
             rank, random);
      for (std::size_t i = 0; i < received.size(); ++i) {
        EXPECT_EQ(received[i], 10 * round + i / 2) << "rank " << rank.rank;
      }
    }
  });
}

/// Element `i` of `rank`'s input.
std::int32_t small_value(int rank, std::size_t i) {
  return 1000 + 100 * rank + static_cast<std::int32_t>(i);
}

/// A result with one element from or for each rank.
void expect_small_result(Collective collective, int rank, int size,
                         const std::vector<std::int32_t>& result) {
  const auto self = static_cast<std::size_t>(rank);
  const bool is_scattered = collective == Collective::ReduceScatter;
  std::int32_t sum = 0;
  for (int from = 0; from < size; ++from) sum += small_value(from, is_scattered ? self : 0);
  std::vector<std::int32_t> expected(result.size());
  for (int from = 0; from < size; ++from) {
    const bool is_exchanged = collective == Collective::AllToAll;
    expected[static_cast<std::size_t>(from)] = small_value(from, is_exchanged ? self : 0);
  }
  if (collective == Collective::AllReduce || is_scattered) {
    expected.assign(result.size(), 0);
    expected.front() = sum;
  } else if (collective == Collective::Broadcast) {
    expected.assign(result.size(), 0);
    expected.front() = small_value(0, 0);
  }
  EXPECT_EQ(result, expected) << name_of(collective) << ", rank " << rank << " of " << size;
}

/// The smallest segment with which all built-in algorithms work on that many ranks. The all-to-all
/// needs the most: three slots with a line for every rank, after a list of lengths.
std::size_t min_segment_bytes(std::size_t ranks) {
  const std::size_t lengths = (1 + ranks) * sizeof(std::uint64_t);
  constexpr std::size_t kLine = ops::Shares::kLineBytes;
  return (lengths + kLine - 1) / kLine * kLine + 3 * ops::Shares::min_slot_bytes(ranks);
}

TEST(WindowTest, MinimumSegments_SufficeForEveryAlgorithm) {
  const ops::Registry registry;
  for (const int size : {2, 3, 8, 16, 24}) {
    const std::size_t least = min_segment_bytes(static_cast<std::size_t>(size));
    std::vector<std::size_t> counts(static_cast<std::size_t>(size), 1);
    std::vector<std::int32_t> in(counts.size() * counts.size());
    run_on_ranks(size, least, 1, [&](const Rank& rank) {
      std::mt19937_64 random = random_of(rank);
      std::vector<std::int32_t> own(counts.size());
      std::vector<std::byte*> peers(counts.size(), reinterpret_cast<std::byte*>(in.data()));
      for (std::size_t i = 0; i < own.size(); ++i) own[i] = small_value(rank.rank, i);
      for (const Algorithm& algorithm : registry.algorithms()) {
        if (algorithm.name != "window" && algorithm.name != "window_small" &&
            algorithm.name != "zero_copy") {
          continue;
        }
        const Collective collective = algorithm.collective;
        const bool is_copied = algorithm.name == "zero_copy";
        std::byte* const self = reinterpret_cast<std::byte*>(own.data());
        std::vector<std::int32_t> result(counts.size());
        result.front() = collective == Collective::Broadcast ? own.front() : -1;
        EXPECT_NO_THROW(
            finish(algorithm.run({.window = &rank.window,
                                  .peer_buffers = is_copied ? std::span<std::byte* const>(peers)
                                                            : std::span<std::byte* const>(),
                                  .input = self,
                                  .output = reinterpret_cast<std::byte*>(result.data()),
                                  .count = is_copied ? 0u : 1u,
                                  .dtype = DType::Int32,
                                  .counts = counts,
                                  .send_counts = counts,
                                  .receive_counts = counts,
                                  .segment_bytes = 64}),
                   rank, random))
            << name_of(collective) << " by " << algorithm.name << " on " << size << " ranks";
        if (!is_copied) expect_small_result(collective, rank.rank, size, result);
      }
    });
  }
}

/// A segment of just the size that the error names is enough.
TEST(WindowTest, SmallestSegments_Suffice) {
  const ops::Registry registry;
  const std::size_t size = 5;
  const std::vector<std::size_t> counts(size, 200);
  std::vector<std::vector<std::int32_t>> outputs(size, std::vector<std::int32_t>(200));
  run_on_ranks(static_cast<int>(size), 3 * (size + 1) * 64, 1, [&](const Rank& rank) {
    const auto self = static_cast<std::size_t>(rank.rank);
    std::vector<std::int32_t> input(200 * size);
    std::iota(input.begin(), input.end(), rank.rank);
    std::mt19937_64 random = random_of(rank);
    finish(registry.find(Collective::ReduceScatter, "window")
               .run({.window = &rank.window,
                     .input = reinterpret_cast<const std::byte*>(input.data()),
                     .output = reinterpret_cast<std::byte*>(outputs[self].data()),
                     .dtype = DType::Int32,
                     .counts = counts,
                     .segment_bytes = 64}),
           rank, random);
  });
  for (std::size_t rank = 0; rank < size; ++rank) {
    for (std::size_t i = 0; i < 200; ++i) {
      const std::size_t sum = size * (rank * 200 + i) + size * (size - 1) / 2;
      ASSERT_EQ(outputs[rank][i], static_cast<std::int32_t>(sum)) << "rank " << rank << ", " << i;
    }
  }
}

}  // namespace kolo::test::window_segments_test

// Every algorithm of the registry that needs no native collectives meets the contract, and moves as
// many bytes as its formula says.

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "contract/all_gather_contract.hpp"
#include "contract/all_reduce_contract.hpp"
#include "contract/all_to_all_contract.hpp"
#include "contract/broadcast_contract.hpp"
#include "contract/reduce_scatter_contract.hpp"
#include "kolo/error.hpp"
#include "ops/registry.hpp"
#include "ops/steps/window_slots.hpp"

namespace kolo::test::algorithms_test {

std::vector<Algorithm> built_in(Collective collective) {
  std::vector<Algorithm> algorithms;
  const ops::Registry registry;
  for (const Algorithm& algorithm : registry.algorithms()) {
    const bool is_local = algorithm.needs != Needs::NativeCollectives;
    const bool is_adasum =
        algorithm.name == "adasum";  // does not reduce element by element: adasum_test
    if (algorithm.collective == collective && is_local && !is_adasum) {
      algorithms.push_back(algorithm);
    }
  }
  return algorithms;
}

INSTANTIATE_TEST_SUITE_P(BuiltIn, AllReduceContract,
                         contract_cases(built_in(Collective::AllReduce)), name_contract_case);
INSTANTIATE_TEST_SUITE_P(BuiltIn, ReduceScatterContract,
                         contract_cases(built_in(Collective::ReduceScatter)), name_contract_case);
INSTANTIATE_TEST_SUITE_P(BuiltIn, AllGatherContract,
                         contract_cases(built_in(Collective::AllGather)), name_contract_case);
INSTANTIATE_TEST_SUITE_P(BuiltIn, BroadcastContract,
                         contract_cases(built_in(Collective::Broadcast)), name_contract_case);
INSTANTIATE_TEST_SUITE_P(BuiltIn, AllToAllContract, contract_cases(built_in(Collective::AllToAll)),
                         name_contract_case);

std::vector<Algorithm> one(Collective collective, std::string_view name) {
  return {ops::Registry().find(collective, name)};
}

/// How halving folds ranks depends on the world size.
INSTANTIATE_TEST_SUITE_P(Halving, AllReduceContract,
                         testing::Combine(testing::ValuesIn(one(Collective::AllReduce,
                                                                "halving_doubling")),
                                          testing::Values(5, 6, 8, 13)),
                         name_contract_case);
INSTANTIATE_TEST_SUITE_P(Halving, ReduceScatterContract,
                         testing::Combine(testing::ValuesIn(one(Collective::ReduceScatter,
                                                                "halving")),
                                          testing::Values(5, 6, 8, 13)),
                         name_contract_case);

struct Traffic {
  std::uint64_t sent = 0;
  std::uint64_t moved = 0;
};

/// Bytes that all ranks together send and move in one call.
Traffic measure(const Algorithm& algorithm, int size,
                const std::function<CollectiveCall(int rank)>& make_call) {
  std::vector<Traffic> traffic(static_cast<std::size_t>(size));
  run_on_ranks(size, kContractWindowBytes, 1, [&](const Rank& rank) {
    std::mt19937_64 random = random_of(rank);
    CollectiveCall call = make_call(rank.rank);
    call.communicator = &rank.communicator;
    call.window = &rank.window;
    call.nodes = rank.nodes;
    call.segment_bytes = 256;
    finish(algorithm.run(call), random);
    traffic[static_cast<std::size_t>(rank.rank)] = {rank.communicator.bytes_sent(),
                                                    rank.window.bytes_moved()};
  });
  Traffic total;
  for (const Traffic& one : traffic) {
    total.sent += one.sent;
    total.moved += one.moved;
  }
  return total;
}

/// The traffic of an all-reduce of `count` floats.
Traffic measure_allreduce(std::string_view name, int size, std::size_t count) {
  std::vector<std::vector<float>> buffers(static_cast<std::size_t>(size),
                                          std::vector<float>(count, 1.0f));
  std::vector<std::byte*> pointers;
  for (auto& buffer : buffers) pointers.push_back(reinterpret_cast<std::byte*>(buffer.data()));
  const ops::Registry registry;
  return measure(registry.find(Collective::AllReduce, name), size, [&](int rank) {
    std::byte* buffer = pointers[static_cast<std::size_t>(rank)];
    return CollectiveCall{
        .peer_buffers = pointers, .input = buffer, .output = buffer, .count = count};
  });
}

/// The traffic if rank r contributes or receives counts[r] floats.
Traffic measure_by_counts(Collective collective, std::string_view name,
                          const std::vector<std::size_t>& counts) {
  const std::size_t size = counts.size();
  const std::size_t total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  const std::size_t longest =
      std::max(total, size * *std::max_element(counts.begin(), counts.end()));
  std::vector<std::vector<float>> inputs(size, std::vector<float>(longest));
  std::vector<std::vector<float>> outputs(size, std::vector<float>(longest));
  std::vector<std::vector<std::size_t>> received;  // all-to-all: rank r sends counts[r] to each
  for (const std::size_t count : counts) received.emplace_back(size, count);
  const ops::Registry registry;
  std::vector<std::byte*> peers;
  for (auto& buffer : collective == Collective::AllGather ? outputs : inputs) {
    peers.push_back(reinterpret_cast<std::byte*>(buffer.data()));
  }
  const auto make_call = [&](int rank) {
    const auto self = static_cast<std::size_t>(rank);
    return CollectiveCall{.peer_buffers = peers,
                          .input = reinterpret_cast<const std::byte*>(inputs[self].data()),
                          .output = reinterpret_cast<std::byte*>(outputs[self].data()),
                          .counts = counts,
                          .send_counts = received[self],
                          .receive_counts = counts};
  };
  return measure(registry.find(collective, name), static_cast<int>(size), make_call);
}

TEST(TrafficTest, AllReduceBytes_FollowTheirFormulas) {
  for (const int size : {1, 2, 3, 4, 7}) {
    for (const std::size_t count : {1u, 64u, 997u}) {
      const std::uint64_t least = 2 * static_cast<std::uint64_t>(size - 1) * count * sizeof(float);
      EXPECT_EQ(measure_allreduce("direct", size, count).sent, least);
      EXPECT_EQ(measure_allreduce("ring", size, count).sent, least);
      EXPECT_EQ(measure_allreduce("halving_doubling", size, count).sent, least);
      EXPECT_EQ(measure_allreduce("window", size, count).moved, least);
      EXPECT_EQ(measure_allreduce("zero_copy", size, count).moved, least);
      const auto all = static_cast<std::uint64_t>(size) * static_cast<std::uint64_t>(size - 1);
      EXPECT_EQ(measure_allreduce("window_small", size, count).moved, all * count * sizeof(float));
      for (const char* name : {"window", "window_small", "zero_copy"}) {
        EXPECT_EQ(measure_allreduce(name, size, count).sent, 0) << name;
      }
    }
  }
}

TEST(TrafficTest, BytesByCounts_FollowTheirFormulas) {
  for (const std::size_t size : {1u, 2u, 3u, 4u, 7u}) {
    std::vector<std::size_t> counts;
    for (std::size_t rank = 0; rank < size; ++rank) counts.push_back((rank * 37 + 11) % 90);
    const std::size_t total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
    const std::uint64_t least = (size - 1) * total * sizeof(float);
    EXPECT_EQ(measure_by_counts(Collective::ReduceScatter, "direct", counts).sent, least);
    EXPECT_EQ(measure_by_counts(Collective::ReduceScatter, "ring", counts).sent, least);
    EXPECT_EQ(measure_by_counts(Collective::AllGather, "ring", counts).sent, least);
    EXPECT_EQ(measure_by_counts(Collective::AllGather, "pairwise", counts).sent, least);
    EXPECT_EQ(measure_by_counts(Collective::AllToAll, "pairwise", counts).sent, least);

    for (const Collective collective :
         {Collective::ReduceScatter, Collective::AllGather, Collective::AllToAll}) {
      for (const char* name : {"window", "zero_copy"}) {
        const Traffic traffic = measure_by_counts(collective, name, counts);
        EXPECT_EQ(traffic.moved, least) << name_of(collective) << ", " << name;
        EXPECT_EQ(traffic.sent, 0u) << name_of(collective) << ", " << name;
      }
    }

    std::size_t folded = 0;  // in a world of 3 rank 1; of 7 ranks 1, 3, 5
    for (std::size_t rank = 1; rank < 2 * (size - std::bit_floor(size)); rank += 2) {
      folded += counts[rank];
    }
    EXPECT_EQ(measure_by_counts(Collective::ReduceScatter, "halving", counts).sent,
              least + folded * sizeof(float));
  }
}

TEST(TrafficTest, BroadcastBytes_FollowTheirFormulas) {
  const ops::Registry registry;
  for (const int size : {1, 2, 3, 4, 7}) {
    std::vector<std::vector<float>> buffers(static_cast<std::size_t>(size),
                                            std::vector<float>(997));
    std::vector<std::byte*> peers;
    for (auto& buffer : buffers) peers.push_back(reinterpret_cast<std::byte*>(buffer.data()));
    const auto measure_broadcast = [&](std::string_view name) {
      return measure(registry.find(Collective::Broadcast, name), size, [&](int rank) {
        return CollectiveCall{.peer_buffers = peers,
                              .output = peers[static_cast<std::size_t>(rank)],
                              .count = 997,
                              .root = size - 1};
      });
    };
    const std::uint64_t least = static_cast<std::uint64_t>(size - 1) * 997 * sizeof(float);
    EXPECT_EQ(measure_broadcast("binomial").sent, least);
    for (const char* name : {"window", "zero_copy"}) {
      EXPECT_EQ(measure_broadcast(name).moved, least) << name;
      EXPECT_EQ(measure_broadcast(name).sent, 0u) << name;
    }
  }
}

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
        EXPECT_NE(text.find("KOLO_STAGING_BYTES"), std::string::npos) << text;
      }
      ++checked;
    }
    EXPECT_EQ(checked, 6);
  });
}

/// When a staged operation begins, other ranks may still read what the last one left in the window.
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
             random);
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
             random);
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

/// A call that moves one element from each rank, or between each pair.
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

/// So that the start can refuse smaller windows, and nothing fails later.
TEST(WindowTest, LeastSegments_SufficeForEveryAlgorithm) {
  const ops::Registry registry;
  for (const int size : {2, 3, 8, 16, 24}) {
    const std::size_t least = ops::WindowSlots::least_segment_bytes(size);
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
                   random))
            << name_of(collective) << " by " << algorithm.name << " on " << size << " ranks";
        if (!is_copied) expect_small_result(collective, rank.rank, size, result);
      }
    });
  }
}

/// A segment of exactly the size that the error names is enough.
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
           random);
  });
  for (std::size_t rank = 0; rank < size; ++rank) {
    for (std::size_t i = 0; i < 200; ++i) {
      const std::size_t sum = size * (rank * 200 + i) + size * (size - 1) / 2;
      ASSERT_EQ(outputs[rank][i], static_cast<std::int32_t>(sum)) << "rank " << rank << ", " << i;
    }
  }
}

}  // namespace kolo::test::algorithms_test

// The contract, for every algorithm in the list that needs no native collectives; and the bytes that
// each moves, against its formula.

#include <vector>

#include <gtest/gtest.h>

#include "contract/algorithm_contract.hpp"
#include "kolo/error.hpp"
#include "ops/registry.hpp"

namespace kolo::test {
namespace {

std::vector<Algorithm> built_in(Collective collective) {
  std::vector<Algorithm> algorithms;
  const ops::Registry registry;
  for (const Algorithm& algorithm : registry.algorithms()) {
    const bool is_local = algorithm.needs != Needs::NativeCollectives;
    if (algorithm.collective == collective && is_local) algorithms.push_back(algorithm);
  }
  return algorithms;
}

INSTANTIATE_TEST_SUITE_P(BuiltIn, AllReduceContract,
                         testing::Combine(testing::ValuesIn(built_in(Collective::AllReduce)),
                                          testing::ValuesIn(kContractWorlds)),
                         name_contract_case);
INSTANTIATE_TEST_SUITE_P(BuiltIn, AllGatherContract,
                         testing::Combine(testing::ValuesIn(built_in(Collective::AllGather)),
                                          testing::ValuesIn(kContractWorlds)),
                         name_contract_case);
INSTANTIATE_TEST_SUITE_P(BuiltIn, BroadcastContract,
                         testing::Combine(testing::ValuesIn(built_in(Collective::Broadcast)),
                                          testing::ValuesIn(kContractWorlds)),
                         name_contract_case);

struct Traffic {
  std::uint64_t sent = 0;
  std::uint64_t moved = 0;
};

/// What all ranks together send and move when they reduce `count` floats.
Traffic measure_allreduce(std::string_view name, int size, std::size_t count) {
  const ops::Registry registry;
  const Algorithm& algorithm = registry.find(Collective::AllReduce, name);
  std::vector<std::vector<float>> buffers(static_cast<std::size_t>(size),
                                          std::vector<float>(count, 1.0f));
  std::vector<std::byte*> pointers;
  for (auto& buffer : buffers) pointers.push_back(reinterpret_cast<std::byte*>(buffer.data()));
  std::vector<Traffic> traffic(static_cast<std::size_t>(size));
  run_on_ranks(size, kContractWindowBytes, 1, [&](const Rank& rank) {
    const auto self = static_cast<std::size_t>(rank.rank);
    std::mt19937_64 random = random_of(rank);
    finish(algorithm.run({.communicator = &rank.communicator,
                          .window = &rank.window,
                          .peer_buffers = pointers,
                          .input = pointers[self],
                          .output = pointers[self],
                          .count = count,
                          .segment_bytes = 256}),
           random);
    traffic[self] = {rank.communicator.bytes_sent(), rank.window.bytes_moved()};
  });
  Traffic total;
  for (const Traffic& one : traffic) {
    total.sent += one.sent;
    total.moved += one.moved;
  }
  return total;
}

TEST(TrafficTest, AllReduceBytes_FollowTheirFormulas) {
  for (const int size : {1, 2, 3, 4, 7}) {
    for (const std::size_t count : {1u, 64u, 997u}) {
      const std::uint64_t least = 2 * static_cast<std::uint64_t>(size - 1) * count * sizeof(float);
      EXPECT_EQ(measure_allreduce("direct", size, count).sent, least);
      EXPECT_EQ(measure_allreduce("ring", size, count).sent, least);
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

TEST(WindowTest, TooSmallSegment_NamesTheSizeNeeded) {
  const ops::Registry registry;
  run_on_ranks(1, 64, 1, [&](const Rank& rank) {
    float value = 1;
    auto* buffer = reinterpret_cast<std::byte*>(&value);
    for (const char* name : {"window", "window_small"}) {
      Task task = registry.find(Collective::AllReduce, name)
                      .run({.window = &rank.window,
                            .input = buffer,
                            .output = buffer,
                            .count = 1,
                            .segment_bytes = 64});
      EXPECT_THROW(task.poll(), InvalidArgument) << name;
    }
  });
}

}  // namespace
}  // namespace kolo::test

// The bytes that each algorithm moves, against its formula.

#include <algorithm>
#include <functional>
#include <numeric>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "contract/algorithm_contract.hpp"
#include "ops/registry.hpp"

namespace kolo::test::traffic_test {

struct Traffic {
  std::uint64_t sent = 0;
  std::uint64_t moved = 0;
};

/// The total bytes that all ranks send and move in one call.
Traffic measure(const Algorithm& algorithm, int size,
                const std::function<CollectiveCall(int rank)>& make_call) {
  std::vector<Traffic> traffic(static_cast<std::size_t>(size));
  run_tasks_on_ranks(size, kContractWindowBytes, kFirstSeed, [&](const Rank& rank) -> Task {
    CollectiveCall call = make_call(rank.rank);
    call.communicator = &rank.communicator;
    call.window = &rank.window;
    call.nodes = rank.nodes;
    call.segment_bytes = 256;
    co_await algorithm.run(call);
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

/// An all-reduce of `count` floats.
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

/// A collective in which rank r contributes or receives counts[r] floats.
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

    std::size_t folded = 0;  // rank 1 in a world of 3; ranks 1, 3, 5 in a world of 7
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

}  // namespace kolo::test::traffic_test

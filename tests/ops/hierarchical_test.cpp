// Hierarchical algorithms, beyond the contract suites: bytes within and between nodes in every
// layout of ranks, outputs that a node shares, and calls without nodes.

#include <algorithm>
#include <array>
#include <barrier>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "contract/algorithm_contract.hpp"
#include "kolo/error.hpp"
#include "ops/registry.hpp"

namespace kolo::test::hierarchical_test {

using Layout = std::vector<int>;  // the node of every rank

class HierarchicalTest : public testing::TestWithParam<Layout> {
 protected:
  struct Traffic {
    std::uint64_t sent;
    std::uint64_t moved;  // within nodes
  };

  std::size_t ranks() const { return GetParam().size(); }
  std::size_t nodes() const {
    return 1 + static_cast<std::size_t>(*std::ranges::max_element(GetParam()));
  }
  std::size_t places() const { return ranks() / nodes(); }

  /// Runs `call` on every rank and returns the total bytes that ranks send and move.
  Traffic run(Collective collective,
              const std::function<CollectiveCall(std::size_t rank)>& make_call) const {
    const Algorithm& algorithm = registry_.find(collective, "hierarchical");
    std::vector<Traffic> traffic(ranks());
    run_tasks_on_nodes(GetParam(), kContractWindowBytes, kFirstSeed, [&](const Rank& rank) -> Task {
      const auto self = static_cast<std::size_t>(rank.rank);
      CollectiveCall call = make_call(self);
      call.communicator = &rank.communicator;
      call.nodes = rank.nodes;
      call.dtype = DType::Int32;
      call.segment_bytes = 256;
      co_await algorithm.run(call);
      traffic[self] = {rank.communicator.bytes_sent(), rank.nodes->window->bytes_moved()};
      EXPECT_EQ(rank.window.stage(), 0u) << "the window over all ranks is not there to be used";
    });
    Traffic total{0, 0};
    for (const Traffic& one : traffic) total = {total.sent + one.sent, total.moved + one.moved};
    return total;
  }

  static std::byte* bytes_of(std::vector<std::int32_t>& values) {
    return reinterpret_cast<std::byte*>(values.data());
  }

  const ops::Registry registry_;
};

std::int32_t value_of(std::size_t rank, std::size_t i) {
  return static_cast<std::int32_t>((rank + 1) * 100'000 + i * 7);
}

TEST_P(HierarchicalTest, Bytes_FollowTheirFormulas) {
  constexpr std::size_t kCount = 1501;
  std::vector<std::size_t> counts(ranks());
  for (std::size_t rank = 0; rank < ranks(); ++rank) counts[rank] = rank * 61 % 230;
  const std::size_t total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  std::vector<std::vector<std::int32_t>> inputs(ranks(), std::vector<std::int32_t>(kCount + total));
  std::vector<std::vector<std::int32_t>> outputs = inputs;
  const auto expect_bytes = [&](Collective collective, std::size_t elements, std::size_t times) {
    const Traffic traffic = run(collective, [&](std::size_t rank) -> CollectiveCall {
      return {.input = bytes_of(inputs[rank]),
              .output = bytes_of(outputs[rank]),
              .count = kCount,
              .root = static_cast<int>(ranks() - 1),
              .counts = counts};
    });
    const std::size_t bytes = times * elements * sizeof(std::int32_t);
    EXPECT_EQ(traffic.sent, (nodes() - 1) * bytes) << name_of(collective);
    EXPECT_EQ(traffic.moved, nodes() * (places() - 1) * bytes) << name_of(collective);
  };
  expect_bytes(Collective::AllReduce, kCount, 2);
  expect_bytes(Collective::Broadcast, kCount, 1);
  expect_bytes(Collective::ReduceScatter, total, 1);
  expect_bytes(Collective::AllGather, total, 1);
}

/// The inputs of one of several all-gathers, and the expected result.
struct GatheredBlocks {
  GatheredBlocks(std::size_t ranks, std::size_t rank, std::size_t round) {
    for (std::size_t peer = 0; peer < ranks; ++peer) {
      counts.push_back(round == 0 ? 0 : (peer * 61 + round * 37) % kMaxCount);
      for (std::size_t i = 0; i < counts.back(); ++i) {
        all.push_back(value_of(peer, i + 1000 * round));
        if (peer == rank) own.push_back(all.back());
      }
    }
  }

  static constexpr std::size_t kMaxCount = 230;  // elements per rank
  std::vector<std::size_t> counts;
  std::vector<std::int32_t> own;
  std::vector<std::int32_t> all;
};

TEST_P(HierarchicalTest, AllGather_IntoOneOutputPerNode) {
  constexpr std::size_t kRounds = 6;
  const Algorithm& algorithm = registry_.find(Collective::AllGather, "hierarchical");
  for (std::uint64_t seed = kFirstSeed; seed < kFirstSeed + 8; ++seed) {
    std::vector<std::vector<std::int32_t>> outputs(
        nodes(), std::vector<std::int32_t>(GatheredBlocks::kMaxCount * ranks()));
    std::barrier all_have_read(static_cast<std::ptrdiff_t>(ranks()));
    run_on_nodes(GetParam(), kContractWindowBytes, seed, [&](const Rank& rank) {
      const auto self = static_cast<std::size_t>(rank.rank);
      std::vector<std::int32_t>& output = outputs[static_cast<std::size_t>(GetParam()[self])];
      std::mt19937_64 random = random_of(rank);
      std::uint64_t sent = 0;
      for (std::size_t round = 0; round < kRounds; ++round) {  // reuses the same memory
        GatheredBlocks blocks(ranks(), self, round);
        all_have_read.arrive_and_wait();
        finish(run_checked(rank, algorithm,
                           {.shares_output = true,
                            .input = bytes_of(blocks.own),
                            .output = bytes_of(output),
                            .dtype = DType::Int32,
                            .counts = blocks.counts,
                            .segment_bytes = 256}),
               rank, random);
        EXPECT_TRUE(std::equal(blocks.all.begin(), blocks.all.end(), output.begin()))
            << "rank " << self << ", round " << round << ", seed " << seed;
        sent += (nodes() - 1) * blocks.own.size() * sizeof(std::int32_t);
      }
      EXPECT_EQ(rank.communicator.bytes_sent(), sent) << "its block, to each other node";
      EXPECT_EQ(rank.nodes->window->bytes_moved(), 0u);
    });
  }
}

std::string name_layout(const testing::TestParamInfo<Layout>& info) {
  std::string name = "nodes";
  for (const int node : info.param) name.append("_").append(std::to_string(node));
  return name;
}

INSTANTIATE_TEST_SUITE_P(Layouts, HierarchicalTest,
                         testing::Values(Layout{0, 1}, Layout{0, 1, 2}, Layout{0, 0, 1, 1},
                                         Layout{0, 1, 0, 1}, Layout{0, 1, 1, 0},
                                         Layout{0, 0, 1, 1, 2, 2}, Layout{0, 1, 2, 2, 0, 1},
                                         Layout{0, 0, 0, 1, 1, 1}, Layout{0, 1, 1, 0, 1, 0},
                                         Layout{0, 0, 0, 1, 1, 1, 2, 2, 2},
                                         Layout{0, 1, 0, 2, 2, 1, 2, 0, 1}),
                         name_layout);

TEST(NodesTest, WithoutAUsableWindowInEveryNode_IsAnError) {
  const ops::Registry registry;
  run_on_ranks(2, kContractWindowBytes, 1, [&](const Rank& rank) {
    Nodes uneven = *rank.nodes;
    uneven.is_homogeneous = false;
    Nodes apart = *rank.nodes;
    apart.window = nullptr;
    const std::vector<std::size_t> counts{1, 1};
    std::vector<float> values(2);
    for (const Algorithm& algorithm : registry.algorithms()) {
      if (algorithm.needs != Needs::Nodes) continue;
      for (const Nodes* nodes : std::array<const Nodes*, 3>{nullptr, &uneven, &apart}) {
        auto* buffer = reinterpret_cast<std::byte*>(values.data());
        Task task = algorithm.run({.communicator = &rank.communicator,
                                   .nodes = nodes,
                                   .input = buffer,
                                   .output = buffer,
                                   .count = 2,
                                   .counts = counts,
                                   .segment_bytes = 64});
        EXPECT_THROW(task.poll(), InvalidArgument) << name_of(algorithm.collective);
      }
    }
  });
}

}  // namespace kolo::test::hierarchical_test

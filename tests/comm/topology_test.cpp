#include "comm/topology.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace kolo::comm::topology_test {

TEST(TopologyTest, Nodes_AreNumberedByTheirLowestRank) {
  const Topology topology = Topology::from_nodes(0, {40, 7, 40, 7, 9});
  EXPECT_EQ(topology.node_of_rank, (std::vector<int>{0, 1, 0, 1, 2}));
}

// A machine of two cores and one of one, whoever binds the ranks.
TEST(CoresTest, AreSharedByMoreRanksThanThereAre) {
  const CoreSet first{0b01};
  const CoreSet second{0b10};
  const CoreSet both{0b11};
  const auto shared_by = [](const std::vector<CoreSet>& cores, const std::vector<int>& machines) {
    std::string ranks;
    for (int rank = 0; rank < static_cast<int>(cores.size()); ++rank) {
      if (shares_cores(cores, machines, rank)) ranks += std::to_string(rank);
    }
    return ranks;
  };
  EXPECT_EQ(shared_by({both, both}, {0, 0}), "");  // not bound
  EXPECT_EQ(shared_by({both, both, both}, {0, 0, 0}), "012");
  EXPECT_EQ(shared_by({first, second}, {0, 0}), "");   // bound to one each
  EXPECT_EQ(shared_by({first, first}, {0, 0}), "01");  // bound to the same one
  EXPECT_EQ(shared_by({first, first, second}, {0, 0, 0}), "01");
  EXPECT_EQ(shared_by({first, first, second}, {0, 1, 0}), "");
  EXPECT_EQ(shared_by({first, both, both}, {0, 0, 0}), "12");
  EXPECT_EQ(shared_by({own_cores()}, {0}), "");
}

TEST(TopologyTest, UnevenInterleavedNodes_HaveLocalAndCrossRanks) {
  struct Row {
    int local_rank, local_size, cross_rank, cross_size;
  };
  // Node 0 has ranks 0, 2, 5; node 1 has 1, 3; node 2 has 4.
  const std::vector<int> nodes{0, 1, 0, 1, 2, 0};
  const std::vector<Row> expected{{0, 3, 0, 3}, {0, 2, 1, 3}, {1, 3, 0, 2},
                                  {1, 2, 1, 2}, {0, 1, 2, 3}, {2, 3, 0, 1}};
  for (int rank = 0; rank < 6; ++rank) {
    const Topology topology = Topology::from_nodes(rank, nodes);
    const Row& row = expected[static_cast<std::size_t>(rank)];
    EXPECT_EQ(topology.rank, rank);
    EXPECT_EQ(topology.size, 6);
    EXPECT_EQ(topology.local_rank, row.local_rank) << "rank " << rank;
    EXPECT_EQ(topology.local_size, row.local_size) << "rank " << rank;
    EXPECT_EQ(topology.cross_rank, row.cross_rank) << "rank " << rank;
    EXPECT_EQ(topology.cross_size, row.cross_size) << "rank " << rank;
    EXPECT_FALSE(topology.is_homogeneous());
  }
}

TEST(TopologyTest, Homogeneous_MeansEquallyManyRanksPerNode) {
  EXPECT_TRUE(Topology::from_nodes(0, {0, 0, 0}).is_homogeneous());
  EXPECT_TRUE(Topology::from_nodes(0, {0, 1, 1, 0}).is_homogeneous());
  EXPECT_FALSE(Topology::from_nodes(0, {0, 0, 1}).is_homogeneous());
}

TEST(TopologyTest, ContiguousNodes_DifferByOneRankAtMost) {
  EXPECT_EQ(contiguous_nodes(4, 1), (std::vector<int>{0, 0, 0, 0}));
  EXPECT_EQ(contiguous_nodes(4, 2), (std::vector<int>{0, 0, 1, 1}));
  EXPECT_EQ(contiguous_nodes(7, 3), (std::vector<int>{0, 0, 0, 1, 1, 2, 2}));
  // More nodes than ranks: every rank has its own node.
  const Topology alone = Topology::from_nodes(2, contiguous_nodes(3, 1 << 20));
  EXPECT_EQ(alone.node_of_rank, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(contiguous_nodes(5000, 1 << 20).back(), static_cast<int>((4999LL << 20) / 5000));
}

}  // namespace kolo::comm::topology_test

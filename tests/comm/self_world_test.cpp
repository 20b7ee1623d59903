#include "comm/self_world.hpp"

#include <functional>
#include <vector>

#include "contract/communicator_contract.hpp"
#include "contract/transfer_contract.hpp"
#include "contract/window_contract.hpp"

namespace kolo::test::self_world_test {

struct SelfRanks {
  static std::vector<int> sizes() { return {1}; }
  static void run(int, const std::function<void(comm::World&)>& body) {
    comm::SelfWorld world;
    body(world);
  }
};

INSTANTIATE_TYPED_TEST_SUITE_P(Self, CommunicatorContract, SelfRanks);
INSTANTIATE_TYPED_TEST_SUITE_P(Self, TransferContract, SelfRanks);
INSTANTIATE_TYPED_TEST_SUITE_P(Self, WindowContract, SelfRanks);

TEST(SelfWorldTest, SelfWorld_HasOneRank) {
  comm::SelfWorld world;
  EXPECT_EQ(world.topology().size, 1);
  EXPECT_TRUE(world.topology().is_homogeneous());
  EXPECT_TRUE(world.dead_peers().empty());
}

}  // namespace kolo::test::self_world_test

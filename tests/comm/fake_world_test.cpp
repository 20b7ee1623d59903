#include "support/fake_world/fake_world.hpp"

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "contract/communicator_contract.hpp"
#include "contract/transfer_contract.hpp"
#include "contract/window_contract.hpp"
#include "support/errors.hpp"
#include "support/fake_world/fault_world.hpp"

namespace kolo::test::fake_world_test {

using namespace std::chrono_literals;

template <int seed, bool rendezvous>
struct FakeRanks {
  static std::vector<int> sizes() { return {1, 2, 3, 4, 7}; }
  static void run(int size, const std::function<void(comm::World&)>& body) {
    run_ranks(size, [&](FakeWorld& world) { body(world); },
              {.longest_delay = seed == 0 ? 0us : 50us, .seed = seed, .rendezvous = rendezvous});
  }
};
using AtOnce = FakeRanks<0, false>;
using Late = FakeRanks<17, false>;
using LateRendezvous = FakeRanks<18, true>;

INSTANTIATE_TYPED_TEST_SUITE_P(FakeAtOnce, CommunicatorContract, AtOnce);
INSTANTIATE_TYPED_TEST_SUITE_P(FakeAtOnce, TransferContract, AtOnce);
INSTANTIATE_TYPED_TEST_SUITE_P(FakeLate, CommunicatorContract, Late);
INSTANTIATE_TYPED_TEST_SUITE_P(FakeLate, TransferContract, Late);
INSTANTIATE_TYPED_TEST_SUITE_P(FakeRendezvous, CommunicatorContract, LateRendezvous);
INSTANTIATE_TYPED_TEST_SUITE_P(FakeRendezvous, TransferContract, LateRendezvous);
INSTANTIATE_TYPED_TEST_SUITE_P(Fake, WindowContract, Late);

/// A FaultWorld without faults changes nothing.
struct FaultlessRanks {
  static std::vector<int> sizes() { return {1, 3}; }
  static void run(int size, const std::function<void(comm::World&)>& body) {
    run_ranks(size, [&](FakeWorld& fake) {
      FaultWorld world({&fake, [](FakeWorld*) {}}, {});
      body(world);
    });
  }
};
/// Delays change only the timing.
struct DelayedRanks {
  static std::vector<int> sizes() { return {1, 3}; }
  static void run(int size, const std::function<void(comm::World&)>& body) {
    run_ranks(size, [&](FakeWorld& fake) {
      FaultWorld world({&fake, [](FakeWorld*) {}},
                       {{.kind = Fault::Kind::Delay, .skip = 3, .count = 20, .delay = 300us}});
      body(world);
    });
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Faultless, CommunicatorContract, FaultlessRanks);
INSTANTIATE_TYPED_TEST_SUITE_P(Faultless, TransferContract, FaultlessRanks);
INSTANTIATE_TYPED_TEST_SUITE_P(Delayed, CommunicatorContract, DelayedRanks);
INSTANTIATE_TYPED_TEST_SUITE_P(Delayed, TransferContract, DelayedRanks);
INSTANTIATE_TYPED_TEST_SUITE_P(Faultless, WindowContract, FaultlessRanks);

TEST(RunRanksTest, FailuresOfAllRanks_AreNamed) {
  const std::string text = text_thrown_by<std::runtime_error>([] {
    run_ranks(3, [](FakeWorld& world) {
      const int rank = world.topology().rank;
      if (rank != 1) throw std::runtime_error("failure of " + std::to_string(rank));
    });
  });
  expect_contains(text, "[rank 0] failure of 0\n");
  expect_contains(text, "[rank 2] failure of 2\n");
  EXPECT_EQ(text.find("[rank 1]"), std::string::npos);
}

TEST(FakeWorldTest, Nodes_AreContiguousBlocks) {
  std::atomic<int> ranks{0};
  run_ranks(5,
            [&](FakeWorld& world) {
              ++ranks;
              EXPECT_EQ(world.topology().node_of_rank, (std::vector<int>{0, 0, 0, 1, 1}));
              EXPECT_EQ(world.topology().local_size, world.topology().rank < 3 ? 3 : 2);
            },
            {.nodes = 2});
  EXPECT_EQ(ranks, 5);
}

TEST(FakeWorldTest, DeadRank_IsSeenByAllAndReachesNobody) {
  run_ranks(3, [](FakeWorld& world) {
    const auto communicator = world.make_communicator();
    std::byte byte{1};
    if (world.topology().rank == 2) {
      world.die();
      Transfer lost = communicator->send({&byte, 1}, 0, 0);
      EXPECT_TRUE(world.dead_peers().empty());
      return;
    }
    while (world.dead_peers().empty()) std::this_thread::yield();
    EXPECT_EQ(world.dead_peers(), std::vector<int>{2});
    EXPECT_EQ(world.dead_peers(), std::vector<int>{2}) << "named once, and from then on";
    EXPECT_FALSE(communicator->probe(0));
  });
}

TEST(FakeWorldTest, WithoutSharedMemory_AWindowFailsOnAllRanks) {
  run_ranks(3,
            [](FakeWorld& world) {
              const auto communicator = world.make_communicator();
              EXPECT_THROW(make_window(world, *communicator, 64), BackendError);
            },
            {.has_shared_memory = false});
}

/// What rank 1 receives of ten one-byte messages that rank 0 sends under these faults.
std::vector<int> received_under(const std::vector<Fault>& faults) {
  std::vector<int> received;
  run_ranks(2, [&](FakeWorld& fake) {
    FaultWorld world({&fake, [](FakeWorld*) {}}, faults, [&] { fake.die(); });
    const auto communicator = everybody(world);
    if (fake.topology().rank == 0) {
      std::vector<std::byte> sent(10);
      std::vector<Transfer> sends;
      for (std::size_t i = 0; i < sent.size(); ++i) {
        sent[i] = static_cast<std::byte>(10 + i);
        sends.push_back(communicator->send({&sent[i], 1}, 1, 1));
      }
      finish_all(sends);
      Transfer end = communicator->send({}, 1, 2);
      finish(end);
      return;
    }
    while (!communicator->probe(2) && world.dead_peers().empty()) std::this_thread::yield();
    while (communicator->probe(1)) {
      std::byte byte{};
      Transfer receiving = communicator->receive({&byte, 1}, 0, 1);
      finish(receiving);
      received.push_back(static_cast<int>(byte));
    }
  });
  return received;
}

TEST(FaultWorldTest, Drop_LosesTheMatchingMessages) {
  EXPECT_EQ(received_under({}), (std::vector<int>{10, 11, 12, 13, 14, 15, 16, 17, 18, 19}));
  EXPECT_EQ(received_under({{.kind = Fault::Kind::Drop, .tag = 1, .skip = 2, .count = 3}}),
            (std::vector<int>{10, 11, 15, 16, 17, 18, 19}));
  EXPECT_EQ(received_under({{.kind = Fault::Kind::Drop, .destination = 0}}).size(), 10u);
  EXPECT_EQ(received_under({{.kind = Fault::Kind::Drop, .channel = 1}}).size(), 10u);
}

TEST(FaultWorldTest, Delay_KeepsTheOrder) {
  EXPECT_EQ(
      received_under({{.kind = Fault::Kind::Delay, .tag = 1, .skip = 1, .count = 2, .delay = 2ms}}),
      (std::vector<int>{10, 11, 12, 13, 14, 15, 16, 17, 18, 19}));
}

TEST(FaultWorldTest, Corrupt_ChangesOneBit) {
  EXPECT_EQ(received_under({{.kind = Fault::Kind::Corrupt, .tag = 1, .skip = 4, .count = 1}}),
            (std::vector<int>{10, 11, 12, 13, 14 ^ 4, 15, 16, 17, 18, 19}));
}

TEST(FaultWorldTest, Die_StopsAllMessages) {
  EXPECT_EQ(received_under({{.kind = Fault::Kind::Die, .tag = 1, .skip = 3}}),
            (std::vector<int>{10, 11, 12}));
}

}  // namespace kolo::test::fake_world_test

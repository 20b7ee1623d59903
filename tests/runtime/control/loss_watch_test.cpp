#include "runtime/control/loss_watch.hpp"

#include <chrono>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "ops/registry.hpp"
#include "runtime/control/header_exchanges.hpp"
#include "support/fake_world/fake_network.hpp"
#include "support/fake_world/fake_world.hpp"

namespace kolo::runtime::loss_watch_test {

using namespace std::chrono_literals;
using tree_header_exchange_test::HeaderExchanges;

using Clock = LossWatch::Clock;

constexpr auto kStep = 50ms;              // between progress steps of an idle rank
constexpr auto kTimeToPropagate = 500ms;  // more than a rank waits for others to learn of a loss
constexpr auto kDied = "died: its process has ended";

/// A process set of every other rank of the world, in virtual time.
class Set {
 public:
  explicit Set(int size, int nodes = 1) : exchanges_(size, 2, 1) {
    test::FakeOptions options;
    options.has_virtual_time = true;
    const auto network = std::make_shared<test::FakeNetwork>(2 * size, options);
    for (int rank = 0; rank < 2 * size; ++rank) {
      world_.push_back(std::make_unique<test::FakeWorld>(network, rank));
    }
    std::vector<int> world_ranks;
    for (int rank = 0; rank < size; ++rank) world_ranks.push_back(world_rank(rank));
    for (int rank = 0; rank < size; ++rank) {
      SetContext set{{algorithms_, compressors_, {}}, config_};
      set.world_ranks = world_ranks;
      for (int i = 0; i < size; ++i) set.node_of_rank.push_back(i * nodes / size);
      set.communicator = world(world_rank(rank)).make_communicator(world_ranks, 1);
      sets_.push_back(std::make_unique<SetContext>(std::move(set)));
      watches_.push_back(std::make_unique<LossWatch>(*sets_.back(), world(world_rank(rank)),
                                                     exchanges_[rank], [](const LostRank&) {}));
    }
  }

  HeaderExchanges& exchanges() { return exchanges_; }
  void die(int rank) { world(world_rank(rank)).die(); }
  void stranger_dies() { world(0).die(); }

  /// A step of `rank`. Messages arrive only in deliver().
  std::optional<LostRank> check(int rank) {
    now_ += kStep;
    return watches_[static_cast<std::size_t>(rank)]->check(now_, true);
  }
  void deliver() { exchanges_.deliver_all(); }

  /// The loss that `rank` acts on within `time`.
  std::optional<LostRank> check_for(int rank, Clock::duration time) {
    for (const auto end = now_ + time; now_ < end;) {
      deliver();
      if (auto lost = check(rank)) return lost;
    }
    return std::nullopt;
  }

 private:
  static int world_rank(int rank) { return 2 * rank + 1; }
  test::FakeWorld& world(int rank) { return *world_[static_cast<std::size_t>(rank)]; }

  Config config_;
  ops::Registry algorithms_;
  compression::Registry compressors_;
  HeaderExchanges exchanges_;
  std::vector<std::unique_ptr<test::FakeWorld>> world_;
  std::vector<std::unique_ptr<SetContext>> sets_;
  std::vector<std::unique_ptr<LossWatch>> watches_;
  Clock::time_point now_ = Clock::time_point() + 1h;
};

TEST(LossWatchTest, DeathOfAMember_IsKnownToAll) {
  Set set(4);
  set.die(2);
  EXPECT_EQ(set.check(0), (LostRank{2, kDied}));
  set.deliver();
  EXPECT_EQ(set.check(1), (LostRank{2, kDied}));
  EXPECT_EQ(set.check(3), (LostRank{2, kDied}));
}

TEST(LossWatchTest, SeveralHosts_HaveTimeToLearnOfIt) {
  Set set(4, 2);
  set.die(2);
  EXPECT_EQ(set.check(0), std::nullopt);
  EXPECT_EQ(set.check_for(0, kTimeToPropagate), (LostRank{2, kDied}));
}

TEST(LossWatchTest, DeathsOutsideTheSet_AreNone) {
  Set set(3);
  set.stranger_dies();
  EXPECT_EQ(set.check_for(0, 2s), std::nullopt);
}

TEST(LossWatchTest, RanksThatHaveLeft_MayEnd) {
  Set set(3);
  set.exchanges()[1].leave();
  set.deliver();
  set.die(1);
  EXPECT_EQ(set.check_for(0, 2s), std::nullopt);
  EXPECT_EQ(set.check_for(2, 2s), std::nullopt);
}

// Once all have left, processes may end before this rank has read that they have left.
TEST(LossWatchTest, AfterLeaving_DeathsCountOnTheSecondLook) {
  Set set(3);
  set.exchanges()[0].leave();
  set.die(1);
  EXPECT_EQ(set.check(0), std::nullopt);
  EXPECT_EQ(set.check(0), (LostRank{1, kDied}));
}

TEST(LossWatchTest, AfterLeaving_RanksWhoseLeavingArrivesInTime_AreNotLost) {
  Set set(3);
  set.exchanges()[0].leave();
  set.exchanges()[1].leave();
  set.die(1);
  EXPECT_EQ(set.check(0), std::nullopt);
  set.deliver();
  set.exchanges()[2].leave();
  set.die(2);
  EXPECT_EQ(set.check(0), std::nullopt);
  EXPECT_EQ(set.check_for(0, 2s), std::nullopt);
}

TEST(LossWatchTest, FirstLoss_IsTheOneThatAllActOn) {
  Set set(4);
  set.exchanges()[3].publish_lost({3, "failed: out of memory"});
  set.deliver();
  set.die(3);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(set.check_for(rank, kTimeToPropagate), (LostRank{3, "failed: out of memory"}));
  }
}

}  // namespace kolo::runtime::loss_watch_test

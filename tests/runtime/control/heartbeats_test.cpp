#include "runtime/control/heartbeats.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "ops/registry.hpp"
#include "runtime/control/header_exchanges.hpp"

namespace kolo::runtime::heartbeats_test {

using namespace std::chrono_literals;
using tree_header_exchange_test::HeaderExchanges;

using Clock = Heartbeats::Clock;

constexpr auto kLimit = 8s;
constexpr auto kStep = 50ms;  // between progress steps of an idle rank

/// The ranks of a process set, which has every other rank of the world, in virtual time.
class Hosts {
 public:
  explicit Hosts(std::vector<int> node_of_rank, int width = 2,
                 std::chrono::nanoseconds limit = kLimit)
      : exchanges_(static_cast<int>(node_of_rank.size()), width, 1) {
    config_.lost_after = limit;
    config_.tuning.tree_width = width;
    set_.node_of_rank = std::move(node_of_rank);
    for (int rank = 0; rank < size(); ++rank) {
      set_.world_ranks.push_back(2 * rank + 1);
      world_.host_of_rank.emplace_back("elsewhere");
      world_.host_of_rank.push_back("n" + std::to_string(node_of(rank)));
    }
  }

  int size() const { return static_cast<int>(set_.node_of_rank.size()); }
  int node_of(int rank) const { return set_.node_of_rank[static_cast<std::size_t>(rank)]; }
  HeaderExchanges& exchanges() { return exchanges_; }
  comm::Topology& world() { return world_; }

  void start() {
    for (int rank = 0; rank < size(); ++rank) {
      heartbeats_.push_back(std::make_unique<Heartbeats>(rank, set_, world_, exchanges_[rank]));
    }
  }
  /// All ranks but `resting` make progress steps; `losses` collects the losses they detect.
  void run(std::chrono::nanoseconds time, const std::set<int>& resting = {}) {
    if (heartbeats_.empty()) start();
    for (const auto end = now_ + time; now_ < end; now_ += kStep) {
      for (int rank = 0; rank < size(); ++rank) {
        if (resting.contains(rank) || lost.contains(rank)) continue;
        if (auto found = heartbeats_[static_cast<std::size_t>(rank)]->check(now_)) {
          lost.emplace(rank, *found);
          found_at.emplace(rank, now_);
        }
      }
      exchanges_.deliver_all();
    }
  }
  Clock::time_point now() const { return now_; }

  std::map<int, LostRank> lost;
  std::map<int, Clock::time_point> found_at;

 private:
  Config config_;
  ops::Registry algorithms_;
  compression::Registry compressors_;
  SetContext set_{{algorithms_, compressors_, {}}, config_};
  comm::Topology world_;
  HeaderExchanges exchanges_;
  std::vector<std::unique_ptr<Heartbeats>> heartbeats_;
  Clock::time_point now_{};
};

const std::vector<int> kFourHosts{0, 0, 1, 1, 2, 2, 3, 3};

TEST(HeartbeatsTest, QuietHosts_AreNotLost) {
  for (const int width : {1, 2, 8}) {
    Hosts hosts(kFourHosts, width);
    hosts.run(10 * kLimit);
    EXPECT_TRUE(hosts.lost.empty()) << "width " << width;
  }
}

TEST(HeartbeatsTest, OnlyLowestRanksSend_FourTimesInTheLimit) {
  Hosts hosts({0, 1, 0, 1, 2, 2});
  for (const int rank : {2, 3, 5}) hosts.exchanges().kill(rank);
  hosts.run(10 * kLimit);
  EXPECT_TRUE(hosts.lost.empty());
  const std::uint64_t edges = 2;  // each has two directions
  EXPECT_EQ(hosts.exchanges().sent(), 40 * 2 * edges);
}

TEST(HeartbeatsTest, OneHost_SendsNothing) {
  Hosts hosts({0, 0, 0});
  hosts.run(10 * kLimit);
  EXPECT_EQ(hosts.exchanges().sent(), 0u);
}

TEST(HeartbeatsTest, Zero_SwitchesOff) {
  Hosts hosts(kFourHosts, 2, 0s);
  hosts.exchanges().kill(4);
  hosts.run(10 * kLimit);
  EXPECT_EQ(hosts.exchanges().sent(), 0u);
  EXPECT_TRUE(hosts.lost.empty());
}

TEST(HeartbeatsTest, ShortLimits_CountAsOneSecond) {
  Hosts hosts(kFourHosts, 2, 1ms);
  hosts.run(5s);
  EXPECT_TRUE(hosts.lost.empty());
  hosts.exchanges().kill(2);
  hosts.run(750ms - 2 * kStep, {2});  // its last heartbeat may be 250 ms old
  EXPECT_TRUE(hosts.lost.empty());
  hosts.run(500ms, {2});
  EXPECT_TRUE(hosts.lost.contains(0));
}

TEST(HeartbeatsTest, HostThatVanishes_IsFoundByItsNeighboursWithinTheLimit) {
  for (const int node : {0, 1, 2, 3}) {
    SCOPED_TRACE("node " + std::to_string(node));
    Hosts hosts(kFourHosts, 1);  // a chain
    hosts.run(3 * kLimit);
    const std::set<int> gone{2 * node, 2 * node + 1};
    for (const int rank : gone) hosts.exchanges().kill(rank);
    const auto vanished_at = hosts.now();
    hosts.run(kLimit + 3 * kStep, gone);
    std::set<int> expected;
    if (node > 0) expected.insert(2 * (node - 1));
    if (node < 3) expected.insert(2 * (node + 1));
    for (int rank = 0; rank < hosts.size(); ++rank) {
      ASSERT_EQ(hosts.lost.contains(rank), expected.contains(rank)) << "rank " << rank;
      if (!expected.contains(rank)) continue;
      EXPECT_EQ(hosts.lost[rank].rank, 2 * node);
      const auto took = hosts.found_at[rank] - vanished_at;
      EXPECT_GE(took, kLimit - kLimit / 4 - 2 * kStep);  // since its last heartbeat
      EXPECT_LE(took, kLimit + 2 * kStep);
    }
  }
}

TEST(HeartbeatsTest, Loss_NamesHostsRanksAndWhatToDo) {
  Hosts hosts(kFourHosts, 2);  // nodes 1 and 2 are children of node 0
  hosts.run(kLimit);
  hosts.exchanges().kill(2);
  hosts.run(1s, {2});
  hosts.exchanges().kill(4);
  hosts.run(2 * kLimit, {2, 4});
  const std::string end =
      " for 8 s (KOLO_LOST_AFTER). The host or its network has failed, or the process was stopped, "
      "as by a debugger. Start again from the last checkpoint with the hosts that are left, or "
      "with a longer KOLO_LOST_AFTER; 0s: never.";
  const std::string begin = "cannot be reached: nothing has come from ";
  ASSERT_TRUE(hosts.lost.contains(0));
  EXPECT_EQ(hosts.lost[0].how,
            begin + "host n1 (ranks 5 and 7) and from host n2 (ranks 9 and 11)" + end);
  ASSERT_TRUE(hosts.lost.contains(6));  // child of node 1
  EXPECT_EQ(hosts.lost[6].how, begin + "host n1 (ranks 5 and 7)" + end);
}

TEST(HeartbeatsTest, UnknownHost_IsNamedByItsRanks) {
  Hosts hosts({0, 1});
  hosts.world().host_of_rank.clear();
  hosts.exchanges().kill(1);
  hosts.run(2 * kLimit, {1});
  ASSERT_TRUE(hosts.lost.contains(0));
  EXPECT_NE(hosts.lost[0].how.find("from the host of rank 3 for 8 s"), std::string::npos)
      << hosts.lost[0].how;
}

TEST(HeartbeatsTest, HostThatComesBackInTime_IsNotLost) {
  Hosts hosts(kFourHosts);
  for (int i = 0; i < 5; ++i) {
    hosts.run(kLimit);
    hosts.run(kLimit - kLimit / 4 - 2 * kStep, {2, 3});
  }
  EXPECT_TRUE(hosts.lost.empty());
}

TEST(HeartbeatsTest, OtherMessages_AreSignsOfLife) {
  Hosts hosts({0, 1});
  for (int i = 0; i < 20; ++i) {
    hosts.run(kLimit / 2, {1});
    hosts.exchanges()[1].request_wake_up(static_cast<std::uint64_t>(i) + 1);
  }
  EXPECT_TRUE(hosts.lost.empty());
}

TEST(HeartbeatsTest, RankThatWasStopped_DoesNotTakeTheOthersForLost) {
  Hosts hosts({0, 1});
  hosts.run(kLimit);
  for (int i = 0; i < 5; ++i) {
    hosts.run(10 * kLimit, {0, 1});  // the whole machine is suspended
    hosts.run(kStep, {1});
    hosts.run(kLimit / 4);
  }
  EXPECT_TRUE(hosts.lost.empty());
}

TEST(HeartbeatsTest, RankThatHasLeft_IsNotMissed) {
  Hosts hosts({0, 1, 2});
  hosts.run(kLimit);
  hosts.exchanges()[1].leave();
  hosts.exchanges().deliver_all();
  const std::uint64_t sent = hosts.exchanges().sent();
  hosts.run(4 * kLimit, {1});
  EXPECT_TRUE(hosts.lost.empty());
  EXPECT_EQ(hosts.exchanges().sent() - sent, 16u * 2);  // between nodes 0 and 2
}

}  // namespace kolo::runtime::heartbeats_test

// What the ranks of a tree learn of those that die, fall silent or leave.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/control/header_exchanges.hpp"
#include "runtime/control/tree_header_exchange.hpp"

namespace kolo::runtime::tree_header_exchange_test {

using Loss = HeaderExchange::Loss;

TEST(TreeHeaderExchangeTest, Loss_ReachesAllAroundADeadRank) {
  in_all_worlds(2, [](HeaderExchanges& ranks) {
    const auto size = static_cast<unsigned>(ranks.size());
    const int dead = ranks.draw_rank();
    const auto reporter =
        static_cast<int>((static_cast<unsigned>(dead) + 1 + ranks.draw(size - 1)) % size);
    ranks.kill(dead);
    const Loss loss{dead, "died: its process has ended"};
    EXPECT_FALSE(ranks[reporter].lost());
    ranks[reporter].publish_lost(loss);
    ranks.deliver_all();
    for (int rank = 0; rank < ranks.size(); ++rank) {
      if (rank == dead) continue;
      EXPECT_EQ(ranks[rank].lost(), loss) << "rank " << rank << ", reported by " << reporter;
    }
    const std::uint64_t sent = ranks.sent();
    ranks[reporter].publish_lost({reporter, "is another loss"});
    EXPECT_EQ(ranks[reporter].lost(), loss);
    EXPECT_EQ(ranks.sent(), sent) << "the first loss stays";
  });
}

TEST(TreeHeaderExchangeTest, LossOfAnUnreachableRank_ReachesTheOthers) {
  HeaderExchanges ranks(5, 2, 1);
  ranks.kill(1);
  ranks.cut_off(1);
  ranks[2].publish_lost({1, "died"});
  ranks.deliver_all();
  for (const int rank : {0, 2, 3, 4}) EXPECT_EQ(ranks[rank].lost(), (Loss{1, "died"}));
}

TEST(TreeHeaderExchangeTest, LossByAReporterThatDiesMeanwhile_StillReachesAll) {
  in_all_worlds(3, [](HeaderExchanges& ranks) {
    const int reporter = ranks.size() - 1;  // a leaf, so that the others' tree stays connected
    const Loss loss{reporter, "ended with an exception"};
    ranks.kill_after(reporter, 1);
    ranks[reporter].publish_lost(loss);
    ranks.deliver_all();
    for (int rank = 0; rank < reporter; ++rank) {
      EXPECT_EQ(ranks[rank].lost(), loss) << "rank " << rank;
    }
  });
}

TEST(TreeHeaderExchangeTest, Leaves_ReachAllThoughOthersHaveLeftBefore) {
  in_all_worlds(1, [](HeaderExchanges& ranks) {
    std::vector<int> order;
    for (int rank = 0; rank < ranks.size(); ++rank) order.push_back(rank);
    for (std::size_t i = order.size(); i > 1; --i) {
      std::swap(order[i - 1], order[ranks.draw(static_cast<unsigned>(i))]);
    }
    for (const int rank : order) {
      EXPECT_FALSE(ranks[rank].has_left(rank));
      ranks[rank].leave();
      ranks.deliver_all();
      ranks.stop(rank);
      for (std::size_t i = 0; i < order.size(); ++i) {
        const bool must_have_left = std::find(order.begin(), order.end(), rank) - order.begin() >=
                                    static_cast<std::ptrdiff_t>(i);
        EXPECT_EQ(ranks[order.back()].has_left(order[i]), must_have_left)
            << order[i] << " at " << rank;
      }
    }
    EXPECT_FALSE(ranks[order.front()].lost());
  });
}

TEST(TreeHeaderExchangeTest, SilentRanks_AreThoseWhichReadNoMessages) {
  in_all_worlds(2, [](HeaderExchanges& ranks) {
    std::vector<int> at_work;
    std::vector<int> stopped;
    for (int rank = 0; rank < ranks.size(); ++rank) {
      (ranks.draw(4) == 0 ? stopped : at_work).push_back(rank);
    }
    for (const int rank : stopped) ranks.stop(rank);
    const auto expect_silent = [&](const std::vector<int>& expected, const char* when) {
      for (const int rank : at_work) {
        EXPECT_EQ(ranks[rank].silent_ranks(), expected) << "at " << rank << " " << when;
      }
      ranks.deliver_all();
    };
    expect_silent({}, "before the first Ping");
    expect_silent(stopped, "after they had time to answer");
    expect_silent(stopped, "still");
    for (const int rank : stopped) ranks.resume(rank);
    expect_silent(stopped, "until the next Ping");
    expect_silent({}, "once they go on");
  });
}

TEST(TreeHeaderExchangeTest, UnreachableRank_IsSilent) {
  HeaderExchanges ranks(3, 2, 0);
  ranks.cut_off(1);
  ranks[0].silent_ranks();
  ranks.deliver_all();
  EXPECT_EQ(ranks[0].silent_ranks(), std::vector<int>{1});
}

TEST(TreeHeaderExchangeTest, RankThatHasLeft_IsNotSilent) {
  HeaderExchanges ranks(3, 2, 0);
  ranks[2].leave();
  ranks.deliver_all();
  ranks.stop(2);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(ranks[0].silent_ranks(), std::vector<int>{});
    ranks.deliver_all();
  }
}

TEST(TreeHeaderExchangeTest, RankThatHasLeft_SendsNothingMore) {
  HeaderExchanges ranks(3, 2, 0);
  ranks[2].leave();
  const std::uint64_t sent = ranks.sent();
  ranks[2].on_message(0, Ping{});  // in transit when this rank left
  EXPECT_EQ(ranks.sent(), sent);
}

}  // namespace kolo::runtime::tree_header_exchange_test

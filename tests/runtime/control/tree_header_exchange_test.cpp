#include "runtime/control/tree_header_exchange.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/error.hpp"
#include "runtime/control/header_exchanges.hpp"
#include "support/errors.hpp"

namespace kolo::runtime::tree_header_exchange_test {

/// Every field differs by rank and exchange.
Header header_of(int rank, std::uint64_t exchange) {
  std::minstd_rand random(static_cast<unsigned>(exchange * 64) + static_cast<unsigned>(rank) + 1);
  random.discard(2);
  const auto one_in = [&](unsigned n) { return random() % n == 0; };
  Header header;
  header.exchange = exchange;
  header.has_unknown = one_in(20);
  header.has_expired = one_in(20);
  header.has_stalled = one_in(20);
  if (one_in(10)) header.joined.set(rank);
  if (one_in(10)) header.shutdown_rank = rank;
  if (one_in(10)) header.thrower_rank = rank;
  if (!one_in(3)) header.newest = {static_cast<std::int64_t>(random() % 5), rank};
  for (int bit = 0; bit < 200; bit += 9) {
    if (one_in(10)) header.own.set(bit);
    if (!one_in(10)) header.ready.set(bit);
  }
  return header;
}

Header serial_merge(int size, std::uint64_t exchange) {
  Header merged = header_of(0, exchange);
  for (int rank = 1; rank < size; ++rank) merged.merge(header_of(rank, exchange));
  return merged;
}

TEST(TreeHeaderExchangeTest, Exchanges_MergeEveryHeaderOnEveryRank) {
  constexpr std::uint64_t kExchanges = 12;
  in_all_worlds(1, [](HeaderExchanges& ranks) {
    // Ranks post and poll at random times, so that some run ahead of others.
    std::vector<std::uint64_t> posted(static_cast<std::size_t>(ranks.size()));
    std::vector<std::uint64_t> read(posted);
    const auto take_turn = [&](int rank) {
      std::uint64_t& mine = posted[static_cast<std::size_t>(rank)];
      std::uint64_t& seen = read[static_cast<std::size_t>(rank)];
      if (mine == seen && mine < kExchanges) ranks[rank].post(header_of(rank, ++mine));
      if (mine == seen) return;
      const std::optional<Header> merged = ranks[rank].merged(mine);
      if (!merged) return;
      EXPECT_EQ(*merged, serial_merge(ranks.size(), mine)) << "rank " << rank;
      EXPECT_GE(*std::min_element(posted.begin(), posted.end()), mine) << "before all had posted";
      seen = mine;
    };
    const auto is_finished = [&] {
      return std::all_of(read.begin(), read.end(), [&](auto e) { return e == kExchanges; });
    };
    for (int steps = 0; steps < 100'000 && !is_finished(); ++steps) {
      if (ranks.draw(2) == 0 || !ranks.deliver()) {
        take_turn(ranks.draw_rank());
      }
    }
    EXPECT_TRUE(is_finished()) << "some rank waits for ever";
    std::uint64_t bytes = 0;
    for (int rank = 0; rank < ranks.size(); ++rank) bytes += ranks[rank].bytes_shown();
    EXPECT_EQ(bytes, kExchanges * 2 * static_cast<unsigned>(ranks.size() - 1) * kHeaderBytes);
  });
}

TEST(TreeHeaderExchangeTest, Merged_AnswersForTheLastExchangeOnly) {
  HeaderExchanges ranks(1, 2, 0);
  EXPECT_FALSE(ranks[0].merged(1));
  ranks[0].post(header_of(0, 1));
  EXPECT_EQ(ranks[0].merged(1), header_of(0, 1));
  EXPECT_EQ(ranks[0].merged(1), header_of(0, 1));
  EXPECT_FALSE(ranks[0].merged(2));
  ranks[0].post(header_of(0, 2));
  EXPECT_EQ(ranks[0].merged(2), header_of(0, 2));
}

TEST(TreeHeaderExchangeTest, WakeUpRequests_ReachAllAndAreForwardedOnce) {
  in_all_worlds(1, [](HeaderExchanges& ranks) {
    const int requester = ranks.draw_rank();
    ranks[requester].request_wake_up(5);
    EXPECT_EQ(ranks[requester].highest_wake_up_request(), 5u);
    ranks.deliver_all();
    EXPECT_EQ(ranks.sent(), static_cast<unsigned>(ranks.size() - 1));
    for (int rank = 0; rank < ranks.size(); ++rank) {
      EXPECT_EQ(ranks[rank].highest_wake_up_request(), 5u) << "rank " << rank;
      ranks[rank].request_wake_up(5);  // every rank already knows it
      ranks[rank].request_wake_up(4);
    }
    EXPECT_EQ(ranks.sent(), static_cast<unsigned>(ranks.size() - 1));
  });
}

TEST(TreeHeaderExchangeTest, WakeUpRequests_EndAtARankThatHasLeft) {
  HeaderExchanges ranks(3, 1, 0);  // a chain
  ranks[1].leave();
  ranks.deliver_all();
  const auto sent = ranks.sent();
  ranks[2].request_wake_up(5);
  ranks.deliver_all();
  EXPECT_EQ(ranks.sent(), sent + 1);
  EXPECT_EQ(ranks[0].highest_wake_up_request(), 0u);
}

TEST(TreeHeaderExchangeTest, WakeUpRequestsOfAllAtOnce_EndAtTheHighestEverywhere) {
  in_all_worlds(1, [](HeaderExchanges& ranks) {
    std::uint64_t highest = 0;
    for (int rank = 0; rank < ranks.size(); ++rank) {
      const std::uint64_t exchange = 1 + ranks.draw(9);
      highest = std::max(highest, exchange);
      ranks[rank].request_wake_up(exchange);
      if (ranks.draw(2) == 0) ranks.deliver();
    }
    ranks.deliver_all();
    for (int rank = 0; rank < ranks.size(); ++rank) {
      EXPECT_EQ(ranks[rank].highest_wake_up_request(), highest) << "rank " << rank;
    }
  });
}

/// `header_exchange` must reject the message with a text that contains `part`.
void expect_rejected(TreeHeaderExchange& header_exchange, int from,
                     const HeaderExchangeMessage& message, const std::string& part = "") {
  test::expect_contains(
      test::text_thrown_by<BackendError>([&] { header_exchange.on_message(from, message); }), part);
}

TEST(TreeHeaderExchangeTest, HeaderOutOfTurn_IsRejectedByName) {
  HeaderExchanges ranks(7, 2, 0);  // rank 1: parent 0, children 3 and 4
  TreeHeaderExchange& header_exchange = ranks[1];
  expect_rejected(header_exchange, 5, HeaderUp{header_of(5, 1)}, "no child");
  expect_rejected(header_exchange, 3, HeaderUp{header_of(3, 2)}, "expected 1");
  header_exchange.on_message(3, HeaderUp{header_of(3, 1)});
  expect_rejected(header_exchange, 3, HeaderUp{header_of(3, 1)}, "rank 1 of the process set");
  expect_rejected(header_exchange, 3, HeaderUp{header_of(3, 1)}, "exchange 1 from rank 3");
  expect_rejected(header_exchange, 3, HeaderDown{header_of(3, 1)}, "not the parent");
  expect_rejected(header_exchange, 0, HeaderDown{header_of(0, 1)});  // nothing posted
  header_exchange.post(header_of(1, 1));
  expect_rejected(header_exchange, 0, HeaderDown{header_of(0, 1)});  // child 4 is missing
  header_exchange.on_message(4, HeaderUp{header_of(4, 1)});
  expect_rejected(header_exchange, 0, HeaderDown{header_of(0, 2)});  // another exchange
  header_exchange.on_message(0, HeaderDown{header_of(0, 1)});
  expect_rejected(header_exchange, 0, HeaderDown{header_of(0, 1)});  // twice
  EXPECT_EQ(header_exchange.merged(1), header_of(0, 1));
}

TEST(TreeHeaderExchangeTest, ChildAheadOfItsParent_IsKeptForTheNextExchange) {
  HeaderExchanges ranks(2, 1, 0);
  ranks[0].post(header_of(0, 1));
  ranks[1].post(header_of(1, 1));
  ranks.deliver_all();
  ASSERT_TRUE(ranks[1].merged(1));
  ranks[1].post(header_of(1, 2));
  ranks.deliver_all();
  EXPECT_EQ(ranks[0].merged(1), serial_merge(2, 1)) << "not read before";
  ranks[0].post(header_of(0, 2));
  EXPECT_EQ(ranks[0].merged(2), serial_merge(2, 2));
}

// --- what the ranks learn of those that die, fall silent or leave ---

TEST(TreeHeaderExchangeTest, Loss_ReachesAllAroundADeadRank) {
  in_all_worlds(2, [](HeaderExchanges& ranks) {
    const auto size = static_cast<unsigned>(ranks.size());
    const int dead = ranks.draw_rank();
    const auto reporter =
        static_cast<int>((static_cast<unsigned>(dead) + 1 + ranks.draw(size - 1)) % size);
    ranks.kill(dead);
    const LostRank lost{dead, "died: its process has ended"};
    EXPECT_FALSE(ranks[reporter].lost());
    ranks[reporter].publish_lost(lost);
    ranks.deliver_all();
    for (int rank = 0; rank < ranks.size(); ++rank) {
      if (rank == dead) continue;
      EXPECT_EQ(ranks[rank].lost(), lost) << "rank " << rank << ", reported by " << reporter;
    }
    const std::uint64_t sent = ranks.sent();
    ranks[reporter].publish_lost({reporter, "is another loss"});
    EXPECT_EQ(ranks[reporter].lost(), lost);
    EXPECT_EQ(ranks.sent(), sent) << "the first loss stays";
  });
}

TEST(TreeHeaderExchangeTest, LossOfAnUnreachableRank_ReachesTheOthers) {
  HeaderExchanges ranks(5, 2, 1);
  ranks.kill(1);
  ranks.cut_off(1);
  ranks[2].publish_lost({1, "died"});
  ranks.deliver_all();
  for (const int rank : {0, 2, 3, 4}) EXPECT_EQ(ranks[rank].lost(), (LostRank{1, "died"}));
}

TEST(TreeHeaderExchangeTest, LossByAReporterThatDiesMeanwhile_StillReachesAll) {
  in_all_worlds(3, [](HeaderExchanges& ranks) {
    const int reporter = ranks.size() - 1;  // a leaf, so that the others' tree stays connected
    const LostRank lost{reporter, "ended with an exception"};
    ranks.kill_after(reporter, 1);
    ranks[reporter].publish_lost(lost);
    ranks.deliver_all();
    for (int rank = 0; rank < reporter; ++rank) {
      EXPECT_EQ(ranks[rank].lost(), lost) << "rank " << rank;
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

TEST(TreeHeaderExchangeTest, AwaitedRank_IsKnownWhereAllAreChildren) {
  constexpr int kBit = 7;
  Header without;
  without.exchange = 1;
  Header with = without;
  with.ready.set(kBit);
  HeaderExchanges star(3, 2, 0);
  star[0].post(with);
  EXPECT_EQ(star[0].awaited({}), 1);
  star[1].post(with);
  star.deliver_all();
  EXPECT_EQ(star[0].awaited(kBit), 2) << "has not posted";
  star[2].post(without);
  star.deliver_all();
  EXPECT_EQ(star[0].awaited({}), -1);
  EXPECT_EQ(star[0].awaited(kBit), 2) << "has not shown the bit";
  EXPECT_EQ(star[0].awaited(kBit + 1), -1) << "nor has this rank";
  EXPECT_EQ(star[1].awaited(kBit), -1);
  HeaderExchanges tree(4, 2, 0);  // rank 3 is below rank 1
  tree[0].post(with);
  tree[1].post(with);
  tree[2].post(with);
  tree.deliver_all();
  EXPECT_EQ(tree[0].awaited({}), -1) << "rank 1 waits itself";
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

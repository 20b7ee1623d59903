#include "runtime/control/window_header_exchange.hpp"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "contract/ranks.hpp"
#include "kolo/error.hpp"

namespace kolo::runtime::window_header_exchange_test {

WindowHeaderExchange make_exchange(const test::Rank& rank) {
  return WindowHeaderExchange(std::shared_ptr<SharedWindow>(std::shared_ptr<void>(), &rank.window));
}

/// Runs `body(rank, size, exchange)` on `size` threads that share a window.
template <class Body>
void run_ranks_of(int size, const Body& body) {
  test::run_on_ranks(size, WindowHeaderExchange::segment_bytes(), 1, [&](const test::Rank& rank) {
    WindowHeaderExchange exchange = make_exchange(rank);
    body(rank.rank, size, exchange);
  });
}

/// Every field differs by rank and exchange; one to five words of bits.
Header header_of(int rank, std::uint64_t exchange) {
  const int number = static_cast<int>(exchange) + rank;
  Header header;
  header.exchange = exchange;
  header.has_unknown = number % 3 == 0;
  header.has_expired = number % 5 == 0;
  header.has_stalled = number % 7 == 0;
  if (number % 11 == 0) header.shutdown_rank = rank;
  if (number % 13 == 0) header.thrower_rank = rank;
  if (number % 2 == 0) header.joined.set(rank);
  if (number % 3 != 1) header.newest = {-number, rank};
  header.own.set(number % 320);
  header.ready = header.own;
  header.ready.set((number + 1) % 64);
  return header;
}

Header merged_headers(int size, std::uint64_t exchange) {
  Header merged = header_of(0, exchange);
  for (int rank = 1; rank < size; ++rank) merged.merge(header_of(rank, exchange));
  return merged;
}

Header wait_for_headers(WindowHeaderExchange& exchange, std::uint64_t number) {
  for (;;) {
    if (std::optional<Header> merged = exchange.merged(number)) return *merged;
    std::this_thread::yield();
  }
}

// Ranks run ahead of one another as far as the protocol allows, so a slot is rewritten as soon as
// possible. ThreadSanitizer reports a write to a header that is still being read.
TEST(WindowHeaderExchangeTest, ManyExchanges_MergeEveryHeaderOnEveryRank) {
  constexpr std::uint64_t kExchanges = 2'000;
  for (const int size : {1, 2, 3}) {
    run_ranks_of(size, [](int rank, int ranks, WindowHeaderExchange& exchange) {
      for (std::uint64_t number = 1; number <= kExchanges; ++number) {
        exchange.post(header_of(rank, number));
        const int awaited = exchange.awaited(static_cast<int>(number) % 320);
        ASSERT_TRUE(awaited < ranks && awaited != rank) << awaited;
        ASSERT_EQ(wait_for_headers(exchange, number), merged_headers(ranks, number)) << number;
      }
    });
  }
}

TEST(WindowHeaderExchangeTest, UnpostedHeader_HoldsTheExchange) {
  std::latch has_looked(1);
  run_ranks_of(2, [&](int rank, int, WindowHeaderExchange& exchange) {
    if (rank == 1) {
      has_looked.wait();
      exchange.post(header_of(1, 1));
    } else {
      exchange.post(header_of(0, 1));
      EXPECT_EQ(exchange.merged(1), std::nullopt);
      has_looked.count_down();
    }
    EXPECT_EQ(wait_for_headers(exchange, 1), merged_headers(2, 1));
  });
}

TEST(WindowHeaderExchangeTest, AwaitedRank_HasNotPostedOrNotShown) {
  constexpr int kBit = 70;  // not in the first word
  const auto post = [](WindowHeaderExchange& exchange, std::uint64_t number, bool has_bit) {
    Header header;
    header.exchange = number;
    header.own.set(3);
    header.ready.set(3);
    if (has_bit) header.ready.set(kBit);
    exchange.post(header);
  };
  std::barrier<> turn(3);
  run_ranks_of(3, [&](int rank, int, WindowHeaderExchange& exchange) {
    const auto expect = [&](std::vector<int> posted, std::vector<int> shown) {
      turn.arrive_and_wait();
      EXPECT_EQ(exchange.awaited({}), posted[static_cast<std::size_t>(rank)]) << rank;
      EXPECT_EQ(exchange.awaited(kBit), shown[static_cast<std::size_t>(rank)]) << rank;
      turn.arrive_and_wait();
    };
    for (std::uint64_t number = 1; number <= 3; ++number) {
      if (rank == 0) post(exchange, number, true);
      if (number == 1) expect({1, -1, -1}, {1, -1, -1});
      if (rank == 1) post(exchange, number, false);
      expect({2, 2, -1}, {1, -1, number == 1 ? -1 : 1});
      if (rank == 2) post(exchange, number, true);
      expect({-1, -1, -1}, {1, -1, 1});
      wait_for_headers(exchange, number);
    }
  });
}

TEST(WindowHeaderExchangeTest, WakeUpRequests_ReachEveryRank) {
  run_ranks_of(3, [](int rank, int ranks, WindowHeaderExchange& exchange) {
    for (std::uint64_t number = 1; number <= 200; ++number) {
      // Ranks take turns: one that requests exchange n has seen the request for n - 1.
      if (static_cast<int>(number) % ranks == rank) exchange.request_wake_up(number);
      while (exchange.highest_wake_up_request() < number) std::this_thread::yield();
    }
  });
}

TEST(WindowHeaderExchangeTest, Loss_IsReadWhole) {
  const std::string how = "failed: " + std::string(900, 'x');
  run_ranks_of(3, [&](int rank, int, WindowHeaderExchange& exchange) {
    if (rank == 2) {
      exchange.publish_lost({1, how});
      exchange.publish_lost({0, "only the first call counts"});
    }
    std::optional<LostRank> lost;
    while (!lost) lost = exchange.lost();
    EXPECT_EQ(lost->rank, 1);
    EXPECT_EQ(lost->how, how);
  });
}

TEST(WindowHeaderExchangeTest, SilentRanks_AreThoseWithoutABeatThatHaveNotLeft) {
  std::latch have_beaten(2);
  std::latch is_sampled(1);
  run_ranks_of(3, [&](int rank, int, WindowHeaderExchange& exchange) {
    if (rank > 0) {
      exchange.beat();
      have_beaten.count_down();
      is_sampled.wait();
      return;
    }
    have_beaten.wait();
    EXPECT_EQ(exchange.silent_ranks(), std::vector<int>{});
    EXPECT_EQ(exchange.silent_ranks(), (std::vector<int>{1, 2})) << "no beat since the last call";
    is_sampled.count_down();
  });
  run_ranks_of(2, [](int rank, int, WindowHeaderExchange& exchange) {
    if (rank == 1) {
      exchange.leave();
      return;
    }
    while (!exchange.has_left(1)) std::this_thread::yield();
    EXPECT_FALSE(exchange.has_left(0));
    EXPECT_EQ(exchange.silent_ranks(), std::vector<int>{});
  });
}

TEST(WindowHeaderExchangeTest, HeaderBeyondTheCell_IsRejected) {
  run_ranks_of(1, [](int, int, WindowHeaderExchange& exchange) {
    Header largest;
    largest.exchange = 1;
    largest.own.set(Header::kMaxBits - 1);
    largest.ready = largest.own;
    exchange.post(largest);
    EXPECT_EQ(exchange.merged(1), largest);

    Header beyond;
    beyond.exchange = 2;
    beyond.ready.set(Header::kMaxBits);
    EXPECT_THROW(exchange.post(beyond), BackendError);
    EXPECT_EQ(exchange.merged(2), std::nullopt);
  });
}

}  // namespace kolo::runtime::window_header_exchange_test

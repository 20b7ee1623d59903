// The rows of the table of cases in docs/protocol.md, on two to four ranks in lockstep. The
// simulator tests them with random timing.

#include "runtime/protocol/coordinator.hpp"

#include <algorithm>
#include <chrono>
#include <string>

#include <gtest/gtest.h>

#include "runtime/protocol/lockstep.hpp"

namespace kolo::runtime::coordinator_test {

using std::chrono::milliseconds;

TEST(CoordinatorTest, WhatAllRanksHave_RunsInOneOrder) {
  Lockstep ranks(3, patient());
  ranks.submit(0, 1, "a");
  ranks.submit(0, 2, "b");
  ranks.submit(1, 1, "b");
  ranks.submit(1, 2, "a");
  ranks.submit(2, 1, "a");
  ranks.advance();
  EXPECT_EQ(ranks.ran(0), "");
  ranks.submit(2, 2, "b");
  ranks.advance(milliseconds(10));
  EXPECT_EQ(ranks.ran(0), "a b");
  EXPECT_EQ(ranks.ran(1), "a b");
  EXPECT_EQ(ranks.ran(2), "a b");
}

TEST(CoordinatorTest, KnownRequest_NeedsNoNegotiation) {
  Lockstep ranks(2, patient());
  for (UseId use = 0; use < 5; ++use) ranks.run_everywhere(use, "a");
  EXPECT_EQ(ranks.ran(1), "a a a a a");
  EXPECT_EQ(ranks[0].counters().negotiations, 1u);
}

TEST(CoordinatorTest, SteadyProgram_NeedsNoWakeUpAndWastesNoExchange) {
  Lockstep ranks(2, patient());
  const auto step = [&](UseId first) {
    for (int rank = 0; rank < 2; ++rank) {
      ranks.submit(rank, first, "a");
      ranks.submit(rank, first + 1, "b");
      ranks.wait(rank, first);
      ranks.wait(rank, first + 1);
      ranks.advance();
    }
  };
  for (UseId use = 0; use < 8; use += 2) step(use);
  const auto before = ranks[0].counters();
  for (UseId use = 8; use < 28; use += 2) step(use);
  const auto& after = ranks[0].counters();
  EXPECT_EQ(after.wake_up_requests, before.wake_up_requests);
  EXPECT_EQ(after.negotiations, before.negotiations);
  EXPECT_EQ(after.fruitless_exchanges, before.fruitless_exchanges);
  EXPECT_GT(after.exchanges, before.exchanges);
}

TEST(CoordinatorTest, LateRank_IsAwaitedWithoutTraffic) {
  Lockstep ranks(2, patient());
  ranks.run_everywhere(0, "a");
  ranks.submit(0, 1, "a");
  ranks.wait(0, 1);
  ranks.advance();
  const int posts = ranks.posts(1);
  for (int i = 0; i < 100; ++i) ranks.advance(milliseconds(100));
  EXPECT_LE(ranks.posts(1), posts + 1);
  EXPECT_EQ(ranks.ran(0), "a");
  ranks.submit(1, 1, "a");
  ranks.advance(milliseconds(5));
  EXPECT_EQ(ranks.ran(0), "a a");
}

TEST(CoordinatorTest, SkippedTensor_HoldsUpNoOther) {
  Lockstep ranks(3, patient());
  ranks.run_everywhere(0, "head");
  ranks.run_everywhere(1, "body");
  ranks.submit(0, 2, "head");  // the others skip it
  for (UseId use = 3; use < 8; ++use) {
    ranks.run_everywhere(use, "body");
    ranks.advance(milliseconds(10));
  }
  EXPECT_EQ(ranks.ran(2), "head body body body body body body");
  ranks.submit(1, 8, "head");
  ranks.submit(2, 8, "head");
  ranks.advance(milliseconds(10));
  EXPECT_EQ(ranks.ran(0), "head body body body body body body head");
}

TEST(CoordinatorTest, LeftOvers_CauseNoExchangesWithAge) {
  Lockstep ranks(2, patient());
  ranks.run_everywhere(0, "a");
  ranks.run_everywhere(1, "b");
  ranks.submit(0, 2, "a");
  ranks.submit(1, 2, "b");
  ranks.advance(milliseconds(20));
  const int posts = ranks.posts(0);
  for (int i = 0; i < 100; ++i) ranks.advance(milliseconds(20));
  EXPECT_LE(ranks.posts(0), posts + 1);
}

TEST(CoordinatorTest, JoinedRank_ContributesTheIdentityUntilAllHaveJoined) {
  Lockstep ranks(3, patient());
  ranks.run_everywhere(0, "a");
  ranks[2].join(1);
  ranks.advance();
  for (UseId use = 1; use < 3; ++use) {
    for (int rank = 0; rank < 2; ++rank) ranks.submit(rank, use, use == 1 ? "a" : "new");
    ranks.advance(milliseconds(10));
    ranks.advance(milliseconds(10));
  }
  EXPECT_EQ(ranks.ran(0), "a a new");
  EXPECT_EQ(ranks.ran(2), "a a* new*");
  ranks[0].join(3);
  ranks.advance();
  EXPECT_FALSE(ranks.joined(2));
  ranks[1].join(3);
  ranks.advance();
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(ranks.joined(rank));
    EXPECT_EQ(ranks.joined(rank)->last_rank, 1);
  }
  ranks.run_everywhere(4, "a");
  EXPECT_EQ(ranks.ran(2), "a a* new* a");
}

TEST(CoordinatorTest, PendingRequests_EndBeforeTheJoin) {
  Lockstep ranks(3, patient());
  ranks.run_everywhere(0, "known");
  for (int rank = 0; rank < 3; ++rank) {  // each has a request that no other rank submits
    ranks.submit(rank, 1, rank == 0 ? "known" : "new of " + std::to_string(rank));
    ranks[rank].join(2);
  }
  ranks.advance();
  EXPECT_EQ(ranks.ran(0), "known known new of 1* new of 2*");
  EXPECT_EQ(ranks.ran(1), "known known* new of 1 new of 2*");
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(ranks.joined(rank));
    EXPECT_EQ(ranks.joined(rank)->last_rank, 2) << "of several at once the highest";
  }
}

TEST(CoordinatorTest, EvictedRequest_IsNegotiatedAgain) {
  Coordinator::Options options = patient();
  options.table.capacity = 2;
  Lockstep ranks(2, options);
  UseId use = 0;
  for (int round = 0; round < 3; ++round) {
    for (const char* name : {"a", "b", "c"}) ranks.run_everywhere(use++, name);
  }
  EXPECT_EQ(ranks.ran(1), "a b c a b c a b c");
  EXPECT_GT(ranks[0].counters().negotiations, 3u);
}

TEST(CoordinatorTest, RequestsWithoutBits_WaitWithoutTraffic) {
  Coordinator::Options options = patient();
  options.table.bits = 2;
  Lockstep ranks(2, options);
  UseId use = 0;
  for (const char* name : {"a", "b", "c", "d"}) ranks.submit(0, use++, name);
  ranks.advance(milliseconds(10));
  const int posts = ranks.posts(0);
  for (int i = 0; i < 100; ++i) ranks.advance(milliseconds(10));
  EXPECT_EQ(ranks.posts(0), posts);
  ranks.submit(1, 0, "d");  // has no bit, and is all that rank 1 submits before it has run
  ranks.advance();
  EXPECT_EQ(ranks.ran(0), "d");
  use = 1;
  for (const char* name : {"c", "b", "a"}) ranks.submit(1, use++, name);
  ranks.advance(milliseconds(10));
  EXPECT_EQ(ranks.ran(0).size(), std::string("d a b c").size()) << ranks.ran(0);
  EXPECT_EQ(ranks.ran(1), ranks.ran(0));
}

TEST(CoordinatorTest, FarMoreRequestsThanBits_AreReportedOnceEach) {
  Coordinator::Options options = patient();
  options.table.bits = 2;
  Lockstep ranks(2, options);
  for (UseId use = 0; use < 100; ++use) {
    for (int rank = 0; rank < 2; ++rank) ranks.submit(rank, use, "n" + std::to_string(use));
  }
  ranks.advance(milliseconds(10));
  const std::string ran = ranks.ran(0);
  EXPECT_EQ(std::count(ran.begin(), ran.end(), 'n'), 100);
  EXPECT_EQ(ranks.reported(1), 100u);
}

TEST(CoordinatorTest, Error_FreesItsBitForARequestWithout) {
  Coordinator::Options options = patient();
  options.table.bits = 1;
  Lockstep ranks(2, options);
  ranks.submit(0, 0, "a", milliseconds(50));
  ranks.submit(0, 1, "b");
  ranks.advance(milliseconds(10));
  ranks.submit(1, 0, "b");
  ranks.advance(milliseconds(10));
  EXPECT_EQ(ranks.ran(0), "b");
  ranks.submit(0, 2, "c");
  ranks.submit(0, 3, "d");
  ranks.advance(milliseconds(40));
  EXPECT_TRUE(has(ranks.failure(0, 0), ErrorKind::Timeout, "'a'"));
  for (const char* name : {"d", "c"}) {
    ranks.submit(1, 1, name);
    ranks.advance(milliseconds(10));
  }
  EXPECT_EQ(ranks.ran(1), "b d c");
}

TEST(CoordinatorTest, SmallRequests_AreFusedUpToTheLimit) {
  Coordinator::Options options = patient();
  options.fusion_bytes = 8;  // two requests of one float
  Lockstep ranks(2, options);
  for (int rank = 0; rank < 2; ++rank) {
    UseId use = 0;
    for (const char* name : {"a", "b", "c"}) ranks.submit(rank, use++, name);
  }
  ranks.advance(milliseconds(10));
  EXPECT_EQ(ranks.ran(0), "ab c");
  EXPECT_EQ(ranks.ran(1), "ab c");
}

TEST(CoordinatorTest, OneRank_RunsAtOnce) {
  Lockstep ranks(1, patient());
  ranks.submit(0, 0, "a");
  ranks.advance();
  ranks.submit(0, 1, "a");
  ranks.advance();
  EXPECT_EQ(ranks.ran(0), "a a");
}

}  // namespace kolo::runtime::coordinator_test

// The rows of the table of cases in docs/protocol.md, on two to four ranks in lockstep. What random
// timing does to them is the simulator's business.

#include "runtime/protocol/coordinator.hpp"

#include <chrono>
#include <string>

#include <gtest/gtest.h>

#include "lockstep.hpp"

namespace kolo::runtime::coordinator_test {

using std::chrono::milliseconds;

Coordinator::Options patient() {
  Coordinator::Options options;
  options.patience = milliseconds(5);
  options.lost_after = milliseconds(1000);
  return options;
}

bool has(const std::optional<Failure>& failure, ErrorKind kind, const std::string& part) {
  return failure && failure->kind == kind && failure->text.find(part) != std::string::npos;
}

TEST(CoordinatorTest, RunsWhatAllRanksHaveInOneOrder) {
  Lockstep ranks(3, patient());
  ranks.submit(0, 1, "a");
  ranks.submit(0, 2, "b");
  ranks.submit(1, 1, "b");
  ranks.submit(1, 2, "a");
  ranks.submit(2, 1, "a");
  ranks.go_on();
  EXPECT_EQ(ranks.ran(0), "");
  ranks.submit(2, 2, "b");
  ranks.go_on(milliseconds(10));
  EXPECT_EQ(ranks.ran(0), "a b");
  EXPECT_EQ(ranks.ran(1), "a b");
  EXPECT_EQ(ranks.ran(2), "a b");
}

TEST(CoordinatorTest, AKnownRequestNeedsNoNegotiation) {
  Lockstep ranks(2, patient());
  for (UseId use = 0; use < 5; ++use) ranks.run_everywhere(use, "a");
  EXPECT_EQ(ranks.ran(1), "a a a a a");
  EXPECT_EQ(ranks[0].counters().negotiations, 1u);
}

TEST(CoordinatorTest, ASteadyProgramAsksNoMoreAndWastesNoExchange) {
  Lockstep ranks(2, patient());
  const auto step = [&](UseId first) {
    for (int rank = 0; rank < 2; ++rank) {
      ranks.submit(rank, first, "a");
      ranks.submit(rank, first + 1, "b");
      ranks.wait(rank, first);
      ranks.wait(rank, first + 1);
      ranks.go_on();
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

TEST(CoordinatorTest, ALateRankIsWaitedForWithoutTraffic) {
  Lockstep ranks(2, patient());
  ranks.run_everywhere(0, "a");
  ranks.submit(0, 1, "a");
  ranks.wait(0, 1);
  ranks.go_on();
  const int posts = ranks.posts(1);
  for (int i = 0; i < 100; ++i) ranks.go_on(milliseconds(100));
  EXPECT_LE(ranks.posts(1), posts + 1);
  EXPECT_EQ(ranks.ran(0), "a");
  ranks.submit(1, 1, "a");
  ranks.go_on(milliseconds(5));
  EXPECT_EQ(ranks.ran(0), "a a");
}

TEST(CoordinatorTest, ASkippedTensorHoldsNoOther) {
  Lockstep ranks(3, patient());
  ranks.run_everywhere(0, "head");
  ranks.run_everywhere(1, "body");
  ranks.submit(0, 2, "head");  // the others skip it
  for (UseId use = 3; use < 8; ++use) {
    ranks.run_everywhere(use, "body");
    ranks.go_on(milliseconds(10));
  }
  EXPECT_EQ(ranks.ran(2), "head body body body body body body");
  ranks.submit(1, 8, "head");
  ranks.submit(2, 8, "head");
  ranks.go_on(milliseconds(10));
  EXPECT_EQ(ranks.ran(0), "head body body body body body body head");
}

TEST(CoordinatorTest, LeftOversExchangeNoHeadersWithAge) {
  Lockstep ranks(2, patient());
  ranks.run_everywhere(0, "a");
  ranks.run_everywhere(1, "b");
  ranks.submit(0, 2, "a");
  ranks.submit(1, 2, "b");
  ranks.go_on(milliseconds(20));
  const int posts = ranks.posts(0);
  for (int i = 0; i < 100; ++i) ranks.go_on(milliseconds(20));
  EXPECT_LE(ranks.posts(0), posts + 1);
}

TEST(CoordinatorTest, AChangedRequestIsAMismatchOnAllRanks) {
  Lockstep ranks(3, patient());
  for (UseId use = 0; use < 3; ++use) ranks.run_everywhere(use, "a");
  ranks.submit(0, 3, "a");
  ranks[1].submit(3, Lockstep::request("a", 9), ranks.now(), kNever);
  ranks.go_on(milliseconds(10));
  ranks.submit(2, 3, "a");  // late: the error waits for it
  ranks.go_on(milliseconds(10));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(has(ranks.failure(rank, 3), ErrorKind::Mismatch, "[9] on rank 1")) << rank;
    EXPECT_EQ(ranks.failure(rank, 3), ranks.failure(0, 3));
  }
  ranks.run_everywhere(4, "a");
  EXPECT_EQ(ranks.ran(2), "a a a a");
}

TEST(CoordinatorTest, TwoKnownRequestsUnderOneNameAreAMismatchToo) {
  Lockstep ranks(2, patient());
  ranks.run_everywhere(0, "a");
  for (int rank = 0; rank < 2; ++rank) {
    ranks[rank].submit(1, Lockstep::request("a", 9), ranks.now(), kNever);
  }
  ranks.go_on(milliseconds(10));
  ranks.submit(0, 2, "a");
  ranks[1].submit(2, Lockstep::request("a", 9), ranks.now(), kNever);
  ranks.go_on(milliseconds(10));
  ranks.go_on(milliseconds(10));
  EXPECT_TRUE(has(ranks.failure(0, 2), ErrorKind::Mismatch, "'a'"));
  EXPECT_EQ(ranks.failure(0, 2), ranks.failure(1, 2));
  EXPECT_EQ(ranks.ran(0), "a a");
}

TEST(CoordinatorTest, ADeadlineEndsOneUseOnAllRanks) {
  Lockstep ranks(3, patient());
  ranks.run_everywhere(0, "a");
  ranks.submit(1, 1, "a", ranks.now() + milliseconds(50));
  ranks.go_on(milliseconds(40));
  EXPECT_FALSE(ranks.failure(1, 1));
  ranks.go_on(milliseconds(10));
  EXPECT_TRUE(has(ranks.failure(1, 1), ErrorKind::Timeout,
                  "passed on rank 1 while ranks 0 and 2 had not submitted it"));
  ranks.submit(0, 1, "a");
  ranks.submit(2, 1, "a");
  ranks.go_on();
  EXPECT_EQ(ranks.failure(0, 1), ranks.failure(1, 1));
  EXPECT_EQ(ranks.failure(2, 1), ranks.failure(1, 1));
  ranks.run_everywhere(2, "a");
  EXPECT_EQ(ranks.ran(0), "a a");
}

TEST(CoordinatorTest, AJoinedRankContributesTheIdentityUntilAllHaveJoined) {
  Lockstep ranks(3, patient());
  ranks.run_everywhere(0, "a");
  ranks[2].join(1);
  ranks.go_on();
  for (UseId use = 1; use < 3; ++use) {
    for (int rank = 0; rank < 2; ++rank) ranks.submit(rank, use, use == 1 ? "a" : "new");
    ranks.go_on(milliseconds(10));
    ranks.go_on(milliseconds(10));
  }
  EXPECT_EQ(ranks.ran(0), "a a new");
  EXPECT_EQ(ranks.ran(2), "a a* new*");
  ranks[0].join(3);
  ranks.go_on();
  EXPECT_FALSE(ranks.joined(2));
  ranks[1].join(3);
  ranks.go_on();
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(ranks.joined(rank));
    EXPECT_EQ(ranks.joined(rank)->last_rank, 1);
  }
  ranks.run_everywhere(4, "a");
  EXPECT_EQ(ranks.ran(2), "a a* new* a");
}

TEST(CoordinatorTest, WhatIsPendingEndsBeforeTheJoinDoes) {
  Lockstep ranks(3, patient());
  ranks.run_everywhere(0, "known");
  for (int rank = 0; rank < 3; ++rank) {  // each has something that nobody else submits
    ranks.submit(rank, 1, rank == 0 ? "known" : "new of " + std::to_string(rank));
    ranks[rank].join(2);
  }
  ranks.go_on();
  EXPECT_EQ(ranks.ran(0), "known known new of 1* new of 2*");
  EXPECT_EQ(ranks.ran(1), "known known* new of 1 new of 2*");
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(ranks.joined(rank));
    EXPECT_EQ(ranks.joined(rank)->last_rank, 2) << "of several at once the highest";
  }
}

TEST(CoordinatorTest, ADefectOfOneRankEndsTheUseOnAll) {
  Lockstep ranks(3, patient());
  ranks.run_everywhere(0, "a");
  for (UseId use = 1; use < 3; ++use) {
    Request broken = Lockstep::request("a", 5);
    broken.invalid_reason = "it has no memory";
    ranks[1].submit(use, broken, ranks.now(), kNever);
    if (use == 1) ranks.submit(0, use, "a");
    ranks.go_on();
    if (use == 2) ranks.submit(0, use, "a");
    ranks.submit(2, use, "a");
    ranks.go_on();
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_TRUE(has(ranks.failure(rank, use), ErrorKind::InvalidArgument,
                      "on process set world: rank 1: it has no memory"));
    }
  }
  ranks.run_everywhere(3, "a");
  EXPECT_EQ(ranks.ran(1), "a a");
}

TEST(CoordinatorTest, JoiningDropsErrorsThatWaitForUsesItReplaces) {
  Lockstep ranks(2, patient());
  ranks.submit(0, 0, "a", milliseconds(5));
  ranks.go_on(milliseconds(5));
  ASSERT_TRUE(has(ranks.failure(0, 0), ErrorKind::Timeout, "rank 1 had not"));
  ranks[1].join(0);
  ranks[0].join(1);
  ranks.go_on();
  ranks.run_everywhere(2, "a");
  EXPECT_EQ(ranks.ran(1), "a");
}

TEST(CoordinatorTest, AShutdownEndsWhatTheOthersWaitFor) {
  Lockstep ranks(3, patient());
  ranks.submit(0, 0, "a");
  ranks[2].shut_down();
  ranks.go_on();
  EXPECT_TRUE(has(ranks.failure(0, 0), ErrorKind::Shutdown, "rank 2 shut"));
  for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(ranks[rank].is_closed());
  ranks.submit(1, 0, "a");
  ranks.go_on();
  EXPECT_TRUE(has(ranks.failure(1, 0), ErrorKind::Shutdown, "rank 2 shut"));
}

TEST(CoordinatorTest, ALossEndsEverythingAndNothingIsPostedAfterIt) {
  Lockstep ranks(2, patient());
  ranks.submit(0, 0, "a");
  ranks.go_on();
  ranks[0].on_lost(1, "died: its process has ended");
  const int posts = ranks.posts(0);
  ranks.go_on();
  EXPECT_TRUE(has(ranks.failure(0, 0), ErrorKind::PeerLost, "rank 1 died"));
  ranks.submit(0, 1, "b");
  ranks.go_on(milliseconds(10));
  EXPECT_TRUE(has(ranks.failure(0, 1), ErrorKind::PeerLost, "'b'"));
  EXPECT_EQ(ranks.posts(0), posts);
}

TEST(CoordinatorTest, ARankThatDoesNotAnswerPastADeadlineIsLookedFor) {
  Coordinator::Options options = patient();
  options.set = {"world", {0, 1}};
  Coordinator alone(options);  // the other rank never posts
  alone.submit(0, Lockstep::request("a"), Time{0}, milliseconds(50));
  alone.decide(Time{0});
  alone.decide(milliseconds(50));
  EXPECT_EQ(alone.next_time(), milliseconds(1050));
  EXPECT_FALSE(alone.decide(milliseconds(1049)).find_silent);
  EXPECT_TRUE(alone.decide(milliseconds(1050)).find_silent);
}

TEST(CoordinatorTest, AStallIsReportedOnceWithWhoIsMissing) {
  Coordinator::Options options = patient();
  options.stall_warn = milliseconds(100);
  Lockstep ranks(3, options);
  ranks.submit(0, 0, "a");
  ranks.submit(2, 0, "a");
  ranks.go_on(milliseconds(99));
  EXPECT_TRUE(ranks.stalls().empty());
  ranks.go_on(milliseconds(1));
  ASSERT_EQ(ranks.stalls().size(), 1u);
  EXPECT_EQ(ranks.stalls()[0], (Verdict::Stall{"a", {0, 2}, {1}}));
  for (int i = 0; i < 10; ++i) ranks.go_on(milliseconds(100));
  EXPECT_EQ(ranks.stalls().size(), 1u);
  ranks.submit(1, 0, "a");
  ranks.go_on(milliseconds(10));
  EXPECT_EQ(ranks.ran(1), "a");
}

TEST(CoordinatorTest, NoStallIsReportedWhereThatIsSwitchedOff) {
  for (const Time off : {Time{0}, kNever}) {
    Coordinator::Options options = patient();
    options.stall_warn = off;
    Lockstep ranks(2, options);
    ranks.submit(0, 0, "a");
    for (int day = 0; day < 10; ++day) ranks.go_on(std::chrono::hours(24));
    EXPECT_TRUE(ranks.stalls().empty());
  }
}

TEST(CoordinatorTest, EvictedRequestsAreNegotiatedAgain) {
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

TEST(CoordinatorTest, WithoutBitsForAllTheOthersWaitInSilence) {
  Coordinator::Options options = patient();
  options.table.bits = 2;
  Lockstep ranks(2, options);
  UseId use = 0;
  for (const char* name : {"a", "b", "c", "d"}) ranks.submit(0, use++, name);
  ranks.go_on(milliseconds(10));
  const int posts = ranks.posts(0);
  for (int i = 0; i < 100; ++i) ranks.go_on(milliseconds(10));
  EXPECT_EQ(ranks.posts(0), posts);
  ranks.submit(1, 0, "d");  // has no bit, and is all that rank 1 submits before it has run
  ranks.go_on();
  EXPECT_EQ(ranks.ran(0), "d");
  use = 1;
  for (const char* name : {"c", "b", "a"}) ranks.submit(1, use++, name);
  ranks.go_on(milliseconds(10));
  EXPECT_EQ(ranks.ran(0).size(), std::string("d a b c").size()) << ranks.ran(0);
  EXPECT_EQ(ranks.ran(1), ranks.ran(0));
}

TEST(CoordinatorTest, AnErrorGivesItsBitToWhatHadNone) {
  Coordinator::Options options = patient();
  options.table.bits = 1;
  Lockstep ranks(2, options);
  ranks.submit(0, 0, "a", milliseconds(50));
  ranks.submit(0, 1, "b");
  ranks.go_on(milliseconds(10));
  ranks.submit(1, 0, "b");
  ranks.go_on(milliseconds(10));
  EXPECT_EQ(ranks.ran(0), "b");
  ranks.submit(0, 2, "c");
  ranks.submit(0, 3, "d");
  ranks.go_on(milliseconds(40));
  EXPECT_TRUE(has(ranks.failure(0, 0), ErrorKind::Timeout, "'a'"));
  for (const char* name : {"d", "c"}) {
    ranks.submit(1, 1, name);
    ranks.go_on(milliseconds(10));
  }
  EXPECT_EQ(ranks.ran(1), "b d c");
}

TEST(CoordinatorTest, SmallRequestsAreFusedUpToTheLimit) {
  Coordinator::Options options = patient();
  options.fusion_bytes = 8;  // two requests of one float
  Lockstep ranks(2, options);
  for (int rank = 0; rank < 2; ++rank) {
    UseId use = 0;
    for (const char* name : {"a", "b", "c"}) ranks.submit(rank, use++, name);
  }
  ranks.go_on(milliseconds(10));
  EXPECT_EQ(ranks.ran(0), "ab c");
  EXPECT_EQ(ranks.ran(1), "ab c");
}

TEST(CoordinatorTest, OneRankAloneRunsAtOnce) {
  Lockstep ranks(1, patient());
  ranks.submit(0, 0, "a");
  ranks.go_on();
  ranks.submit(0, 1, "a");
  ranks.go_on();
  EXPECT_EQ(ranks.ran(0), "a a");
}

}  // namespace kolo::runtime::coordinator_test

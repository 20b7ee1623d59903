// The rows of the table of cases in docs/protocol.md, on two to four ranks in lockstep. The
// simulator tests them with random timing.

#include <chrono>
#include <string>

#include <gtest/gtest.h>

#include "runtime/protocol/coordinator.hpp"
#include "runtime/protocol/lockstep.hpp"

namespace kolo::runtime::coordinator_errors_test {

using std::chrono::milliseconds;

TEST(CoordinatorErrorsTest, ChangedRequest_IsAMismatchOnAllRanks) {
  Lockstep ranks(3, patient());
  for (UseId use = 0; use < 3; ++use) ranks.run_everywhere(use, "a");
  ranks.submit(0, 3, "a");
  ranks[1].submit(3, Lockstep::request("a", 9), ranks.now(), kNever);
  ranks.advance(milliseconds(10));
  ranks.submit(2, 3, "a");  // late: the error waits for it
  ranks.advance(milliseconds(10));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(has(ranks.failure(rank, 3), ErrorKind::Mismatch, "[9] on rank 1")) << rank;
    EXPECT_EQ(ranks.failure(rank, 3), ranks.failure(0, 3));
  }
  ranks.run_everywhere(4, "a");
  EXPECT_EQ(ranks.ran(2), "a a a a");
}

TEST(CoordinatorErrorsTest, TwoKnownRequestsOfOneName_AreAMismatch) {
  Lockstep ranks(2, patient());
  ranks.run_everywhere(0, "a");
  for (int rank = 0; rank < 2; ++rank) {
    ranks[rank].submit(1, Lockstep::request("a", 9), ranks.now(), kNever);
  }
  ranks.advance(milliseconds(10));
  ranks.submit(0, 2, "a");
  ranks[1].submit(2, Lockstep::request("a", 9), ranks.now(), kNever);
  ranks.advance(milliseconds(10));
  ranks.advance(milliseconds(10));
  EXPECT_TRUE(has(ranks.failure(0, 2), ErrorKind::Mismatch, "'a'"));
  EXPECT_EQ(ranks.failure(0, 2), ranks.failure(1, 2));
  EXPECT_EQ(ranks.ran(0), "a a");
}

// Rank 0 has the predicted request, so it posts without waking rank 1, which has announced its own
// request: only the patience of rank 0 resolves this (rule 4).
TEST(CoordinatorErrorsTest, PredictedRequestAgainstAnAnnouncedOne_IsAMismatch) {
  Lockstep ranks(2, patient());
  const Request other = Lockstep::request("a", 9);
  for (int rank = 0; rank < 2; ++rank) ranks[rank].submit(0, other, ranks.now(), kNever);
  ranks.advance(milliseconds(10));
  for (UseId use = 1; use < 6; ++use) ranks.run_everywhere(use, "a");
  ranks[1].submit(6, other, ranks.now(), kNever);
  ranks.advance(milliseconds(10));
  EXPECT_EQ(ranks.failure(1, 6), std::nullopt);
  ranks.submit(0, 6, "a");
  ranks.advance();
  ranks.advance(milliseconds(10));
  EXPECT_TRUE(has(ranks.failure(0, 6), ErrorKind::Mismatch, "'a'"));
  EXPECT_EQ(ranks.failure(0, 6), ranks.failure(1, 6));
}

TEST(CoordinatorErrorsTest, Deadline_EndsOneUseOnAllRanks) {
  Lockstep ranks(3, patient());
  ranks.run_everywhere(0, "a");
  ranks.submit(1, 1, "a", ranks.now() + milliseconds(50));
  ranks.advance(milliseconds(40));
  EXPECT_FALSE(ranks.failure(1, 1));
  ranks.advance(milliseconds(10));
  EXPECT_TRUE(has(ranks.failure(1, 1), ErrorKind::Timeout,
                  "passed on rank 1 while ranks 0 and 2 had not submitted it"));
  ranks.submit(0, 1, "a");
  ranks.submit(2, 1, "a");
  ranks.advance();
  EXPECT_EQ(ranks.failure(0, 1), ranks.failure(1, 1));
  EXPECT_EQ(ranks.failure(2, 1), ranks.failure(1, 1));
  ranks.run_everywhere(2, "a");
  EXPECT_EQ(ranks.ran(0), "a a");
}

TEST(CoordinatorErrorsTest, InvalidRequestOfOneRank_EndsTheUseOnAllRanks) {
  Lockstep ranks(3, patient());
  ranks.run_everywhere(0, "a");
  for (UseId use = 1; use < 3; ++use) {
    Request broken = Lockstep::request("a", 5);
    broken.invalid_reason = "it has no memory";
    ranks[1].submit(use, broken, ranks.now(), kNever);
    if (use == 1) ranks.submit(0, use, "a");
    ranks.advance();
    if (use == 2) ranks.submit(0, use, "a");
    ranks.submit(2, use, "a");
    ranks.advance();
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_TRUE(has(ranks.failure(rank, use), ErrorKind::InvalidArgument,
                      "on process set world: rank 1: it has no memory"));
    }
  }
  ranks.run_everywhere(3, "a");
  EXPECT_EQ(ranks.ran(1), "a a");
}

TEST(CoordinatorErrorsTest, Join_DropsDeferredErrors) {
  Lockstep ranks(2, patient());
  ranks.submit(0, 0, "a", milliseconds(5));
  ranks.advance(milliseconds(5));
  ASSERT_TRUE(has(ranks.failure(0, 0), ErrorKind::Timeout, "rank 1 had not"));
  ranks[1].join(0);
  ranks[0].join(1);
  ranks.advance();
  ranks.run_everywhere(2, "a");
  EXPECT_EQ(ranks.ran(1), "a");
}

TEST(CoordinatorErrorsTest, Shutdown_EndsWhatTheOthersWaitFor) {
  Lockstep ranks(3, patient());
  ranks.submit(0, 0, "a");
  ranks[2].shut_down();
  ranks.advance();
  EXPECT_TRUE(has(ranks.failure(0, 0), ErrorKind::Shutdown, "rank 2 shut"));
  for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(ranks[rank].is_closed());
  ranks.submit(1, 0, "a");
  ranks.advance();
  EXPECT_TRUE(has(ranks.failure(1, 0), ErrorKind::Shutdown, "rank 2 shut"));
}

TEST(CoordinatorErrorsTest, Loss_EndsEverythingAndNothingIsPostedAfterIt) {
  Lockstep ranks(2, patient());
  ranks.submit(0, 0, "a");
  ranks.advance();
  ranks[0].on_lost(1, "died: its process has ended");
  const int posts = ranks.posts(0);
  ranks.advance();
  EXPECT_TRUE(has(ranks.failure(0, 0), ErrorKind::PeerLost, "rank 1 died"));
  ranks.submit(0, 1, "b");
  ranks.advance(milliseconds(10));
  EXPECT_TRUE(has(ranks.failure(0, 1), ErrorKind::PeerLost, "'b'"));
  EXPECT_EQ(ranks.posts(0), posts);
}

TEST(CoordinatorErrorsTest, SilentRankAfterADeadline_IsLookedFor) {
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

TEST(CoordinatorErrorsTest, SilentRankDuringAShutdown_IsLookedForAfterATimeOfItsOwn) {
  Coordinator::Options options = patient();
  options.set = {"world", {0, 1}};
  options.lost_in_shutdown_after = milliseconds(3000);
  Coordinator alone(options);  // the other rank never posts
  alone.submit(0, Lockstep::request("a"), Time{0}, milliseconds(2500));
  alone.shut_down();
  alone.decide(Time{0});
  alone.decide(milliseconds(2500));
  EXPECT_EQ(alone.next_time(), milliseconds(3000)) << "also past a deadline";
  EXPECT_FALSE(alone.decide(milliseconds(2999)).find_silent);
  EXPECT_TRUE(alone.decide(milliseconds(3000)).find_silent);
}

TEST(CoordinatorErrorsTest, Stall_IsReportedOnceWithTheMissingRanks) {
  Coordinator::Options options = patient();
  options.stall_warn = milliseconds(100);
  Lockstep ranks(3, options);
  ranks.submit(0, 0, "a");
  ranks.submit(2, 0, "a");
  ranks.advance(milliseconds(99));
  EXPECT_TRUE(ranks.stalls().empty());
  ranks.advance(milliseconds(1));
  ASSERT_EQ(ranks.stalls().size(), 1u);
  EXPECT_EQ(ranks.stalls()[0], (Verdict::Stall{"a", {0, 2}, {1}}));
  for (int i = 0; i < 10; ++i) ranks.advance(milliseconds(100));
  EXPECT_EQ(ranks.stalls().size(), 1u);
  ranks.submit(1, 0, "a");
  ranks.advance(milliseconds(10));
  EXPECT_EQ(ranks.ran(1), "a");
}

TEST(CoordinatorErrorsTest, StallReportsSwitchedOff_NothingIsReported) {
  for (const Time off : {Time{0}, kNever}) {
    Coordinator::Options options = patient();
    options.stall_warn = off;
    Lockstep ranks(2, options);
    ranks.submit(0, 0, "a");
    for (int day = 0; day < 10; ++day) ranks.advance(std::chrono::hours(24));
    EXPECT_TRUE(ranks.stalls().empty());
  }
}

}  // namespace kolo::runtime::coordinator_errors_test

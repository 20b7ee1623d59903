// The rows of the table of cases in docs/protocol.md, on two to four ranks in lockstep. The
// simulator tests them with random timing.
#include "runtime/protocol/coordinator.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

namespace kolo::runtime::coordinator_test {

/// The coordinators of a few ranks, in lockstep: headers and messages are visible to the others
/// immediately. Tests number the uses. The names of what ran are listed one word per batch.
class Lockstep {
 public:
  /// `clock_difference`: how much later it is on each rank's clock than on the next rank's.
  explicit Lockstep(int ranks, Coordinator::Options options = {}, Time clock_difference = Time{0})
      : clock_difference_(clock_difference),
        log_(static_cast<std::size_t>(ranks)),
        headers_(static_cast<std::size_t>(ranks)) {
    options.set = {"world", {}};
    for (int rank = 0; rank < ranks; ++rank) options.set.world_ranks.push_back(rank);
    for (int rank = 0; rank < ranks; ++rank) {
      options.rank = rank;
      options.to_world_clock = rank * clock_difference_;
      if (rank > 0) {
        options.activity = [rank] { return "at work " + std::to_string(rank); };
      }
      cores_.emplace_back(options);
    }
  }

  static Request request(const std::string& name, std::int64_t rows = 1) {
    Request made;
    made.name = name;
    made.tensors = {{DType::Float32, {rows}}};
    return made;
  }

  Coordinator& operator[](int rank) { return cores_[static_cast<std::size_t>(rank)]; }
  int size() const { return static_cast<int>(cores_.size()); }

  void submit(int rank, UseId use, const std::string& name, Time deadline = kNever) {
    (*this)[rank].submit(use, request(name), clock_of(rank), deadline);
  }
  void wait(int rank, UseId use) { (*this)[rank].wait_for(use); }

  /// Lets `time` pass, then runs every rank until none has anything left to do.
  void advance(Time time = Time{0}) {
    now_ += time;
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < size(); ++rank) moved |= make_progress(rank);
    }
  }

  /// Submits a use on every rank, and waits for its end.
  void run_everywhere(UseId use, const std::string& name) {
    for (int rank = 0; rank < size(); ++rank) {
      submit(rank, use, name);
      wait(rank, use);
    }
    advance();
  }

  std::string ran(int rank) const { return log(rank).ran; }
  /// The kind and text of a use's error, if any.
  std::optional<Failure> failure(int rank, UseId use) const {
    const auto found = log(rank).failed.find(use);
    if (found == log(rank).failed.end()) return std::nullopt;
    return found->second;
  }
  std::optional<Coordinator::Joined> joined(int rank) const { return log(rank).joined; }
  int posts(int rank) const { return log(rank).posts; }
  /// Items in the reports that it has sent.
  std::size_t reported(int rank) const { return log(rank).reported; }
  bool searched_for_silent(int rank) const { return log(rank).searched_for_silent; }
  const std::vector<Verdict::Stall>& stalls() const { return log(0).stalls; }
  Time now() const { return now_; }
  Time clock_of(int rank) const { return now_ - rank * clock_difference_; }
  /// Who submitted what each batch waited for last, and when on this rank's clock.
  const std::vector<std::optional<std::pair<int, Time>>>& last(int rank) const {
    return log(rank).last;
  }

 private:
  struct Log {
    std::string ran;
    std::vector<std::optional<std::pair<int, Time>>> last;
    std::map<UseId, Failure> failed;
    std::optional<Coordinator::Joined> joined;
    std::vector<Verdict::Stall> stalls;
    int posts = 0;
    std::size_t reported = 0;
    bool searched_for_silent = false;
    std::deque<std::pair<int, ControlMessage>> mail;
  };
  const Log& log(int rank) const { return log_[static_cast<std::size_t>(rank)]; }

  bool make_progress(int rank) {
    Coordinator& core = (*this)[rank];
    Log& log = log_[static_cast<std::size_t>(rank)];
    bool moved = false;
    for (; !log.mail.empty(); log.mail.pop_front(), moved = true) {
      core.on_message(log.mail.front().first, std::move(log.mail.front().second));
    }
    core.on_wake_up_request(wake_up_request_);
    moved |= carry_out(rank, core.decide(clock_of(rank)));
    if (!core.awaits_headers()) return moved;
    std::optional<Header> merged;
    for (const auto& slots : headers_) {
      const Header& header = slots[core.exchange() % 2];
      if (header.exchange != core.exchange()) return moved;
      if (merged) merged->merge(header);
      if (!merged) merged = header;
    }
    core.on_headers(*merged);
    return true;
  }

  bool carry_out(int rank, Coordinator::Actions actions) {
    Log& log = log_[static_cast<std::size_t>(rank)];
    for (const auto& batch : actions.run) {
      log.last.push_back(batch.last);
      if (!log.ran.empty()) log.ran += ' ';
      for (const auto& item : batch.items) log.ran += item.request->name + (item.use ? "" : "*");
    }
    for (const auto& failed : actions.failed) log.failed[failed.use] = failed.failure;
    if (actions.joined) log.joined = actions.joined;
    for (const auto& stall : actions.stalls) log.stalls.push_back(stall);
    if (actions.post) {
      headers_[static_cast<std::size_t>(rank)][actions.post->exchange % 2] = *actions.post;
      ++log.posts;
    }
    if (actions.wake_up_request)
      wake_up_request_ = std::max(wake_up_request_, *actions.wake_up_request);
    for (auto& [to, message] : actions.send) {
      if (const auto* report = std::get_if<Report>(&message)) log.reported += report->items.size();
      log_[static_cast<std::size_t>(to)].mail.emplace_back(rank, std::move(message));
    }
    log.searched_for_silent |= actions.find_silent;
    return actions.post || actions.wake_up_request || !actions.send.empty() ||
           !actions.run.empty() || !actions.failed.empty();
  }

  const Time clock_difference_;
  std::vector<Coordinator> cores_;
  std::vector<Log> log_;
  std::vector<std::array<Header, 2>> headers_;  // two slots per rank
  std::uint64_t wake_up_request_ = 0;
  Time now_{10 * clock_difference_};  // positive on every rank
};

/// Options with a patience of 5 ms; ranks count as lost after a second.
Coordinator::Options patient() {
  Coordinator::Options options;
  options.patience = std::chrono::milliseconds(5);
  options.lost_after = std::chrono::milliseconds(1000);
  return options;
}

using std::chrono::milliseconds;

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

// --- who comes last ---

class LastRankTest : public testing::Test {
 protected:
  using Last = std::optional<std::pair<int, Time>>;

  /// What rank `rank` knows of the last batch, in the time of `ranks_`.
  Last last(int rank) {
    Last last = ranks_.last(rank).back();
    if (last) last->second += ranks_.now() - ranks_.clock_of(rank);
    return last;
  }
  void expect_last(int late, Time at) {
    for (int rank = 0; rank < ranks_.size(); ++rank) {
      EXPECT_EQ(last(rank), (std::pair(late, at))) << "on rank " << rank;
    }
  }

  Lockstep ranks_{3, patient(), std::chrono::hours(1)};
};

TEST_F(LastRankTest, AllRanksKnowWhoAndWhen) {
  UseId use = 0;
  while (use < 3) ranks_.run_everywhere(use++, "a");  // it is predicted from now on
  for (const int late : {2, 0, 1}) {
    for (int rank = 0; rank < 3; ++rank) {
      if (rank != late) ranks_.submit(rank, use, "a");
    }
    ranks_.advance(milliseconds(70));
    ranks_.submit(late, use++, "a");
    ranks_.advance();
    expect_last(late, ranks_.now());
  }
}

TEST_F(LastRankTest, ExchangesThatRunNothingDoNotForget) {
  ranks_.run_everywhere(0, "a");
  ranks_.submit(1, 1, "a");
  ranks_.wait(1, 1);  // asks all ranks, which have nothing yet
  ranks_.advance(milliseconds(10));
  ranks_.submit(2, 1, "a");
  ranks_.wait(2, 1);
  ranks_.advance(milliseconds(10));
  const Time latest = ranks_.now();
  ranks_.submit(0, 1, "a");
  ranks_.advance(milliseconds(10));
  expect_last(0, latest);
}

TEST_F(LastRankTest, ANewNameHasALastRankToo) {
  ranks_.submit(0, 0, "new");
  ranks_.submit(1, 0, "new");
  ranks_.advance(milliseconds(30));
  const Time latest = ranks_.now();
  ranks_.submit(2, 0, "new");
  ranks_.advance();
  ranks_.advance(milliseconds(10));
  ASSERT_EQ(ranks_.ran(0), "new");
  expect_last(2, latest);
}

TEST(CoordinatorErrorsTest, SilentRank_IsLookedForAtTheDeadline) {
  Coordinator::Options options = patient();
  options.set = {"world", {0, 1}};
  Coordinator alone(options);  // the other rank never posts
  alone.submit(0, Lockstep::request("a"), Time{0}, milliseconds(5000));
  alone.decide(Time{0});
  EXPECT_FALSE(alone.decide(milliseconds(4999)).find_silent);
  EXPECT_TRUE(alone.decide(milliseconds(5000)).find_silent);
  EXPECT_FALSE(alone.decide(milliseconds(5999)).find_silent);
  EXPECT_TRUE(alone.decide(milliseconds(6000)).find_silent) << "it may have fallen silent late";
}

TEST(CoordinatorErrorsTest, SilentRank_MayBeSilentLongerThanUntilAnEarlyDeadline) {
  Coordinator::Options options = patient();
  options.set = {"world", {0, 1}};
  Coordinator alone(options);  // the other rank never posts
  alone.submit(0, Lockstep::request("a"), Time{0}, milliseconds(50));
  alone.decide(Time{0});
  alone.decide(milliseconds(50));
  EXPECT_EQ(alone.next_time(), milliseconds(1000));
  EXPECT_FALSE(alone.decide(milliseconds(999)).find_silent);
  EXPECT_TRUE(alone.decide(milliseconds(1000)).find_silent);
}

TEST(CoordinatorErrorsTest, SilentRankDuringAShutdown_IsLookedForFromItsBeginOn) {
  Coordinator::Options options = patient();
  options.set = {"world", {0, 1}};
  Coordinator alone(options);  // the other rank never posts
  alone.submit(0, Lockstep::request("a"), Time{0}, milliseconds(500));
  alone.decide(Time{0});
  alone.shut_down();
  alone.decide(milliseconds(300));
  alone.decide(milliseconds(500));
  EXPECT_EQ(alone.next_time(), milliseconds(1300)) << "also past a deadline";
  EXPECT_FALSE(alone.decide(milliseconds(1299)).find_silent);
  EXPECT_TRUE(alone.decide(milliseconds(1300)).find_silent);
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
  EXPECT_EQ(ranks.stalls()[0], (Verdict::Stall{"a", {0, 2}, {1}, ". Rank 1 is at work 1"}));
  for (int i = 0; i < 10; ++i) ranks.advance(milliseconds(100));
  EXPECT_EQ(ranks.stalls().size(), 1u);
  ranks.submit(1, 0, "a");
  ranks.advance(milliseconds(10));
  EXPECT_EQ(ranks.ran(1), "a");
}

TEST(CoordinatorErrorsTest, Timeout_SaysWhatMissingRanksDoIfTheyKnow) {
  Lockstep ranks(4, patient());
  ranks.submit(3, 0, "a", milliseconds(100));
  ranks.advance(milliseconds(100));
  const auto failure = ranks.failure(3, 0);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->text,
            "allreduce 'a' on process set world: the deadline passed on rank 3 while ranks 0, 1 "
            "and 2 had not submitted it. Rank 1 is at work 1. Rank 2 is at work 2. Submit it on "
            "every rank, or raise the timeout (KOLO_TIMEOUT).");
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

}  // namespace kolo::runtime::coordinator_test

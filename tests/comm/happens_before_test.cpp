#include "support/gpu/happens_before.hpp"

#include <array>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "support/gpu/launch_order.hpp"

namespace kolo::test::happens_before_test {

class HappensBeforeTest : public testing::Test {
 protected:
  using Timeline = HappensBefore::Timeline;

  MemoryOperation operation(std::string name) {
    return {.name = std::move(name), .order = ++last_order_};
  }
  void read(Timeline timeline, const std::string& name, ByteRange range) {
    MemoryOperation reading = operation(name);
    reading.reads = {range};
    graph_.operate(timeline, reading);
  }
  void write(Timeline timeline, const std::string& name, ByteRange range) {
    MemoryOperation writing = operation(name);
    writing.writes = {range};
    graph_.operate(timeline, writing);
  }
  void free(ByteRange range, const VectorClock& besides = {}) {
    graph_.free(host_, range, ++last_order_, besides);
  }
  void allocate(ByteRange range) { graph_.allocate(host_, range, ++last_order_); }
  /// Orders the next operation on `later` after everything on `earlier` so far.
  void wait(Timeline later, Timeline earlier) {
    const VectorClock event = graph_.clock(earlier);
    graph_.join(later, event);
  }

  void expect_hazard(const std::string& text) {
    ASSERT_EQ(graph_.hazards().size(), 1u);
    EXPECT_NE(graph_.hazards().front().find(text), std::string::npos) << graph_.hazards().front();
  }

  std::array<std::byte, 64> memory_{};
  ByteRange all_{memory_};
  std::uint64_t last_order_ = 0;
  HappensBefore graph_;
  Timeline host_ = graph_.add_timeline("rank 0, host");
  Timeline one_ = graph_.add_timeline("rank 0, stream 1");
  Timeline two_ = graph_.add_timeline("rank 0, stream 2");
};

TEST_F(HappensBeforeTest, OneTimelineIsInOrder) {
  write(one_, "a", all_);
  read(one_, "b", all_);
  write(one_, "c", all_);
  EXPECT_TRUE(graph_.hazards().empty());
}

TEST_F(HappensBeforeTest, ReadAfterWriteNamesBothAndTheBytes) {
  write(one_, "produce", all_.first(32));
  read(two_, "consume", all_.subspan(24, 16));
  expect_hazard(
      "read after write: 'consume' (rank 0, stream 2) reads what 'produce' (rank 0, stream 1) "
      "writes, and does not wait for it: bytes 0x");
}

TEST_F(HappensBeforeTest, WriteAfterReadAndAfterWrite) {
  read(one_, "a", all_);
  write(two_, "b", all_);
  expect_hazard("write after read: 'b'");
  write(one_, "c", all_);
  ASSERT_EQ(graph_.hazards().size(), 2u);
  EXPECT_EQ(graph_.hazards().back().find("write after write: 'c'"), 0u) << graph_.hazards().back();
}

TEST_F(HappensBeforeTest, ReadsAndNeighboursAreHarmless) {
  read(one_, "a", all_);
  read(two_, "b", all_);
  write(host_, "c", {});
  EXPECT_TRUE(graph_.hazards().empty());
  wait(one_, two_);
  write(one_, "d", all_.first(10));
  wait(two_, one_);
  write(two_, "e", all_.subspan(10));
  write(one_, "f", all_.first(10));
  EXPECT_TRUE(graph_.hazards().empty());
}

TEST_F(HappensBeforeTest, AWriterWaitsForAllReaders) {
  write(host_, "new", all_);
  wait(one_, host_);
  wait(two_, host_);
  read(one_, "a", all_.first(40));
  read(two_, "b", all_.subspan(20));
  wait(host_, two_);
  write(host_, "c", all_);
  expect_hazard("write after read: 'c' (rank 0, host) writes what 'a'");
}

TEST_F(HappensBeforeTest, EventOrdersEarlierWork) {
  write(one_, "a", all_.first(8));
  const VectorClock event = graph_.clock(one_);
  write(one_, "b", all_.subspan(8));
  graph_.join(two_, event);
  read(two_, "c", all_.first(8));
  EXPECT_TRUE(graph_.hazards().empty());
  read(two_, "d", all_.subspan(8));
  expect_hazard("'d' (rank 0, stream 2) reads what 'b'");
}

TEST_F(HappensBeforeTest, WaitingIsTransitive) {
  write(one_, "a", all_);
  wait(host_, one_);
  wait(two_, host_);
  write(two_, "b", all_);
  EXPECT_TRUE(graph_.hazards().empty());
}

TEST_F(HappensBeforeTest, HostIsNotOrderedAfterWhatItLaunched) {
  write(host_, "fill", all_);
  wait(one_, host_);  // a launch
  write(one_, "kernel", all_);
  EXPECT_TRUE(graph_.hazards().empty());
  read(host_, "look", all_);
  expect_hazard("'look' (rank 0, host) reads what 'kernel'");
}

TEST_F(HappensBeforeTest, OneConflictIsReportedOnceHoweverManyPiecesItHas) {
  write(one_, "all", all_);
  for (std::size_t i = 0; i < 64; i += 8) read(one_, "piece", all_.subspan(i, 8));
  write(two_, "all again", all_);
  EXPECT_EQ(graph_.hazards().size(), 9u);  // one for each reader of a piece, one for the writer
}

TEST_F(HappensBeforeTest, TheTextFollowsTheOrderOfLaunches) {
  MemoryOperation first = operation("launched first");
  first.reads = {all_};
  write(two_, "launched second", all_);
  graph_.operate(one_, first);
  expect_hazard("write after read: 'launched second'");
}

TEST_F(HappensBeforeTest, MemoryIsFreedOnlyAfterAllItsUses) {
  allocate(all_);
  wait(one_, host_);
  write(one_, "kernel", all_);
  free(all_.first(32));
  expect_hazard("use after free: 'free' (rank 0, host) frees what 'kernel'");
}

TEST_F(HappensBeforeTest, WhatTheFreeingThreadKnowsOrdersNothingElse) {
  write(one_, "kernel", all_);
  free(all_.first(32), graph_.clock(one_));
  EXPECT_TRUE(graph_.hazards().empty());
  read(host_, "late", all_.last(32));
  expect_hazard("read after write: 'late' (rank 0, host)");
}

TEST_F(HappensBeforeTest, FreedMemoryIsOutOfBoundsUntilItIsAllocatedAgain) {
  allocate(all_);
  free(all_);
  wait(one_, host_);
  read(one_, "late", all_.first(4));
  expect_hazard("use after free: 'late' (rank 0, stream 1) reads what 'free' (rank 0, host) has");
  write(one_, "later", all_.first(4));
  EXPECT_EQ(graph_.hazards().size(), 2u);
  allocate(all_);
  wait(one_, host_);
  write(one_, "after", all_);
  EXPECT_EQ(graph_.hazards().size(), 2u);
}

/// Ranks, and the communicators of which each launches the next operation, one after another.
LaunchOrder launched(const std::vector<std::vector<int>>& communicators,
                     const std::vector<std::pair<int, std::vector<std::size_t>>>& launches) {
  LaunchOrder order;
  for (std::size_t i = 0; i < communicators.size(); ++i) {
    for (const int rank : communicators[i]) order.join(i, rank);
  }
  for (const auto& [rank, of_rank] : launches) {
    for (const std::size_t communicator : of_rank) order.launch(communicator, rank);
  }
  return order;
}

TEST(LaunchOrderTest, OneOrderOnAllRanksIsRight) {
  const LaunchOrder order =
      launched({{0, 1, 2}, {0, 1}}, {{2, {0, 0}}, {0, {0, 1, 0, 1}}, {1, {0, 1, 0, 1}}});
  EXPECT_EQ(order.find_stuck(), "");
}

TEST(LaunchOrderTest, AnotherOrderIsFound) {
  LaunchOrder order = launched({{0, 1}, {0, 1}}, {{0, {0, 1}}, {1, {1, 0}}});
  EXPECT_EQ(order.find_stuck(),
            "launch order: all ranks have launched operation 0 of communicator 1, but it cannot "
            "run behind operation 0 of communicator 0 on rank 0");
  order.forget(0);
  EXPECT_EQ(order.find_stuck(), "") << "after an abort ranks may have launched different ones";
}

TEST(LaunchOrderTest, CircleIsFoundWhereNoTwoRanksDiffer) {
  const std::vector<std::vector<int>> pairs{{0, 1}, {1, 2}, {2, 0}};
  EXPECT_NE(launched(pairs, {{0, {0, 2}}, {1, {1, 0}}, {2, {2, 1}}}).find_stuck(), "");
  EXPECT_EQ(launched(pairs, {{0, {0, 2}}, {1, {0, 1}}, {2, {1, 2}}}).find_stuck(), "");
}

TEST(LaunchOrderTest, WhatARankHasNotLaunchedIsNotStuck) {
  EXPECT_EQ(launched({{0, 1}, {1, 2}}, {{1, {0, 1}}, {2, {1}}, {0, {}}}).find_stuck(), "");
}

}  // namespace kolo::test::happens_before_test

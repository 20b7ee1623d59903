#pragma once

#include <cstddef>
#include <ostream>
#include <vector>

#include "contract/guarded_buffer.hpp"
#include "contract/move_case.hpp"
#include "contract/move_contract.hpp"

namespace kolo::test {

struct BroadcastCase {
  MoveCase move;
  int root;
  std::size_t count;
};

inline std::ostream& operator<<(std::ostream& out, const BroadcastCase& item) {
  return out << item.move << ", " << item.count << " elements from " << item.root;
}

/// One rank's memory.
class BroadcastBuffers {
 public:
  BroadcastBuffers(const BroadcastCase& item, std::size_t rank)
      : case_(item),
        content_(bytes_between(static_cast<std::size_t>(item.root), 0,
                               item.count * size_of(item.move.dtype))),
        buffer_(content_.size(), item.move.offset * size_of(item.move.dtype)),
        is_root_(rank == static_cast<std::size_t>(item.root)) {}

  std::byte* peer_buffer() { return buffer_.data(); }

  CollectiveCall call() {
    if (is_root_) buffer_.fill(content_);
    return {.output = buffer_.data(),
            .count = case_.count,
            .dtype = case_.move.dtype,
            .root = case_.root,
            .segment_bytes = case_.move.segment_bytes};
  }

  void give_up() { buffer_.give_up(); }

  void expect_result() const { EXPECT_TRUE(buffer_.holds(content_)) << "wrong output"; }
  void expect_guards_intact() const {
    EXPECT_TRUE(buffer_.is_guard_intact()) << "written beside the buffer";
  }

 private:
  BroadcastCase case_;
  std::vector<std::byte> content_;
  GuardedBuffer buffer_;
  bool is_root_;
};

using BroadcastContract = MoveContract<BroadcastCase, BroadcastBuffers>;

TEST_P(BroadcastContract, EveryRootAndCount) {
  std::vector<BroadcastCase> cases;
  for (int root = 0; root < size(); ++root) {
    for (const std::size_t count : {0u, 1u, 16u, 33u, 331u}) {
      for (const MoveCase& move : every_move(true)) cases.push_back({move, root, count});
    }
  }
  // Longer than the window, so that slots are reused.
  cases.push_back({{.segment_bytes = 4096}, size() - 1, 9001});
  check(cases);
}

TEST_P(BroadcastContract, WhateverTheTiming) {
  std::vector<BroadcastCase> cases;
  for (int root = 0; root < size(); ++root) cases.push_back({{}, root, 301});
  check_timings(cases);
}

TEST_P(BroadcastContract, AbandonedTasks_LeaveNothingBehind) {
  check_abandoned({{}, size() / 2, 301});
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(BroadcastContract);

}  // namespace kolo::test

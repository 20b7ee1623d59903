#pragma once

#include <algorithm>
#include <cstddef>
#include <ostream>
#include <vector>

#include "contract/guarded_buffer.hpp"
#include "contract/move_case.hpp"
#include "contract/move_contract.hpp"

namespace kolo::test {

struct GatherCase {
  MoveCase move;
  std::vector<std::size_t> counts;
};

inline std::ostream& operator<<(std::ostream& out, const GatherCase& item) {
  return out << item.move << ", counts " << testing::PrintToString(item.counts);
}

/// One rank's memory.
class GatherBuffers {
 public:
  GatherBuffers(const GatherCase& item, std::size_t rank)
      : case_(item),
        own_(bytes_between(rank, 0, bytes_of_rank(rank))),
        input_(own_.size(), shift()),
        output_(gathered().size(), shift()) {
    for (std::size_t peer = 0; peer < rank; ++peer) begin_ += bytes_of_rank(peer);
    input_.fill(own_);
  }

  std::byte* peer_buffer() { return output_.data(); }

  CollectiveCall call() {
    std::byte* place = output_.data() + begin_;
    if (case_.move.in_place) std::copy(own_.begin(), own_.end(), place);
    return {.input = case_.move.in_place ? place : input_.data(),
            .output = output_.data(),
            .dtype = case_.move.dtype,
            .counts = case_.counts,
            .segment_bytes = case_.move.segment_bytes};
  }

  void give_up() {
    input_.give_up();
    output_.give_up();
  }

  void expect_result() const { EXPECT_TRUE(output_.holds(gathered())) << "wrong output"; }
  void expect_guards_intact() const {
    EXPECT_TRUE(output_.is_guard_intact()) << "written beside the output";
    EXPECT_TRUE(input_.holds(own_) && input_.is_guard_intact()) << "the input has changed";
  }

 private:
  std::size_t shift() const { return case_.move.offset * size_of(case_.move.dtype); }
  std::size_t bytes_of_rank(std::size_t rank) const {
    return case_.counts[rank] * size_of(case_.move.dtype);
  }
  std::vector<std::byte> gathered() const {
    std::vector<std::byte> all;
    for (std::size_t rank = 0; rank < case_.counts.size(); ++rank) {
      append(all, bytes_between(rank, 0, bytes_of_rank(rank)));
    }
    return all;
  }

  GatherCase case_;
  std::vector<std::byte> own_;
  std::size_t begin_ = 0;  // start of its place in the output
  GuardedBuffer input_;
  GuardedBuffer output_;
};

using AllGatherContract = MoveContract<GatherCase, GatherBuffers>;

TEST_P(AllGatherContract, EveryDistributionOfCounts) {
  std::vector<GatherCase> cases;
  for (const std::vector<std::size_t>& counts : distributions()) {
    for (const bool in_place : {false, true}) {
      for (const MoveCase& move : every_move(in_place)) cases.push_back({move, counts});
    }
  }
  // Longer than the window, so that slots are reused.
  cases.push_back({{.segment_bytes = 4096}, std::vector<std::size_t>(ranks(), 5003)});
  check(cases);
}

TEST_P(AllGatherContract, WhateverTheTiming) {
  std::vector<GatherCase> cases;
  for (const std::vector<std::size_t>& counts : distributions()) cases.push_back({{}, counts});
  check_timings(cases);
}

TEST_P(AllGatherContract, AbandonedTasks_LeaveNothingBehind) {
  check_abandoned({{}, std::vector<std::size_t>(ranks(), 101)});
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(AllGatherContract);

}  // namespace kolo::test

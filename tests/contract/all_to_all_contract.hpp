#pragma once

#include <cstddef>
#include <ostream>
#include <vector>

#include "contract/guarded_buffer.hpp"
#include "contract/move_case.hpp"
#include "contract/move_contract.hpp"

namespace kolo::test {

using ExchangeCounts = std::vector<std::vector<std::size_t>>;  // by sender and receiver

struct ExchangeCase {
  MoveCase move;
  ExchangeCounts counts;
};

inline std::ostream& operator<<(std::ostream& out, const ExchangeCase& item) {
  return out << item.move << ", counts " << testing::PrintToString(item.counts);
}

/// One rank's memory.
class ExchangeBuffers {
 public:
  ExchangeBuffers(const ExchangeCase& item, std::size_t rank)
      : move_(item.move), sent_(item.counts[rank]) {
    const std::size_t element = size_of(move_.dtype);
    for (std::size_t peer = 0; peer < sent_.size(); ++peer) {
      received_.push_back(item.counts[peer][rank]);
      append(original_, bytes_between(rank, peer, sent_[peer] * element));
      append(expected_, bytes_between(peer, rank, received_[peer] * element));
    }
    input_ = GuardedBuffer(original_.size(), move_.offset * element);
    output_ = GuardedBuffer(expected_.size(), move_.offset * element);
  }

  std::byte* peer_buffer() { return input_.data(); }

  CollectiveCall call() {
    input_.fill(original_);
    return {.input = input_.data(),
            .output = output_.data(),
            .dtype = move_.dtype,
            .send_counts = sent_,
            .receive_counts = received_,
            .segment_bytes = move_.segment_bytes};
  }

  void give_up() {
    input_.give_up();
    output_.give_up();
  }

  void expect_result() const { EXPECT_TRUE(output_.holds(expected_)) << "wrong output"; }
  void expect_guards_intact() const {
    EXPECT_TRUE(output_.is_guard_intact()) << "written beside the output";
    EXPECT_TRUE(input_.holds(original_) && input_.is_guard_intact()) << "the input has changed";
  }

 private:
  MoveCase move_;
  std::vector<std::size_t> sent_;
  std::vector<std::size_t> received_;
  std::vector<std::byte> original_;
  std::vector<std::byte> expected_;
  GuardedBuffer input_{0};
  GuardedBuffer output_{0};
};

class AllToAllContract : public MoveContract<ExchangeCase, ExchangeBuffers> {
 protected:
  ExchangeCounts all_counts(const auto& count_between) const {
    ExchangeCounts counts(ranks(), std::vector<std::size_t>(ranks()));
    for (std::size_t from = 0; from < ranks(); ++from) {
      for (std::size_t to = 0; to < ranks(); ++to) counts[from][to] = count_between(from, to);
    }
    return counts;
  }

  /// No, one and many elements between all ranks; uneven; from or to one rank only; to itself only.
  std::vector<ExchangeCounts> exchanges() const {
    const std::size_t last = ranks() - 1;
    return {all_counts([](std::size_t, std::size_t) { return 0u; }),
            all_counts([](std::size_t, std::size_t) { return 1u; }),
            all_counts([](std::size_t, std::size_t) { return 101u; }),
            all_counts([](std::size_t from, std::size_t to) { return (from * 37 + to * 23) % 90; }),
            all_counts([&](std::size_t from, std::size_t) { return from == last ? 67u : 0u; }),
            all_counts([](std::size_t, std::size_t to) { return to == 0 ? 67u : 0u; }),
            all_counts([](std::size_t from, std::size_t to) { return from == to ? 67u : 0u; })};
  }
};

TEST_P(AllToAllContract, EveryDistributionOfCounts) {
  std::vector<ExchangeCase> cases;
  for (const ExchangeCounts& counts : exchanges()) {
    for (const MoveCase& move : every_move(false)) cases.push_back({move, counts});
  }
  // Longer than the window, so that slots are reused.
  const ExchangeCounts many = all_counts([](std::size_t, std::size_t to) { return 2003 + to; });
  cases.push_back({{.segment_bytes = 4096}, many});
  check(cases);
}

TEST_P(AllToAllContract, WhateverTheTiming) {
  std::vector<ExchangeCase> cases;
  for (const ExchangeCounts& counts : exchanges()) cases.push_back({{}, counts});
  check_timings(cases);
}

TEST_P(AllToAllContract, AbandonedTasks_LeaveNothingBehind) {
  check_abandoned({{}, all_counts([](std::size_t, std::size_t) { return 101u; })});
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(AllToAllContract);

}  // namespace kolo::test

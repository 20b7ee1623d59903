#pragma once

#include <cstddef>
#include <vector>

#include "contract/algorithm_contract.hpp"
#include "contract/guarded_buffer.hpp"
#include "contract/move_case.hpp"

namespace kolo::test {

class AllToAllContract : public AlgorithmContract {
 protected:
  using Counts = std::vector<std::vector<std::size_t>>;  // by sender and receiver

  struct ExchangeCase {
    MoveCase move;
    Counts counts;
  };

  /// One rank's memory.
  class Buffers {
   public:
    Buffers(const ExchangeCase& item, std::size_t rank)
        : move_(item.move), sent_(item.counts[rank]) {
      const std::size_t element = size_of(move_.dtype);
      for (std::size_t peer = 0; peer < sent_.size(); ++peer) {
        received_.push_back(item.counts[peer][rank]);
        append(original_, bytes_between(rank, peer, sent_[peer] * element));
        append(expected_, bytes_between(peer, rank, received_[peer] * element));
      }
      input_ = GuardedBuffer(original_.size(), move_.offset * element);
      output_ = GuardedBuffer(expected_.size(), move_.offset * element);
      input_.fill(original_);
    }

    CollectiveCall call() {
      return {.input = input_.data(),
              .output = output_.data(),
              .dtype = move_.dtype,
              .send_counts = sent_,
              .receive_counts = received_,
              .segment_bytes = move_.segment_bytes};
    }

    void expect_exchanged() const {
      EXPECT_TRUE(output_.holds(expected_)) << move_;
      expect_bounds_kept();
    }
    void expect_bounds_kept() const {
      EXPECT_TRUE(output_.is_guard_intact()) << move_ << ": written beside the output";
      EXPECT_TRUE(input_.holds(original_) && input_.is_guard_intact())
          << move_ << ": the input has changed";
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

  Counts all_counts(const auto& count_between) const {
    Counts counts(ranks(), std::vector<std::size_t>(ranks()));
    for (std::size_t from = 0; from < ranks(); ++from) {
      for (std::size_t to = 0; to < ranks(); ++to) counts[from][to] = count_between(from, to);
    }
    return counts;
  }

  /// Nothing, one and many elements between all; uneven; from or to one rank only; to itself only.
  std::vector<Counts> exchanges() const {
    const std::size_t last = ranks() - 1;
    return {all_counts([](std::size_t, std::size_t) { return 0u; }),
            all_counts([](std::size_t, std::size_t) { return 1u; }),
            all_counts([](std::size_t, std::size_t) { return 101u; }),
            all_counts([](std::size_t from, std::size_t to) { return (from * 37 + to * 23) % 90; }),
            all_counts([&](std::size_t from, std::size_t) { return from == last ? 67u : 0u; }),
            all_counts([](std::size_t, std::size_t to) { return to == 0 ? 67u : 0u; }),
            all_counts([](std::size_t from, std::size_t to) { return from == to ? 67u : 0u; })};
  }

  std::vector<std::vector<Buffers>> make_buffers(const std::vector<ExchangeCase>& cases) const {
    std::vector<std::vector<Buffers>> buffers(cases.size());
    for (std::size_t i = 0; i < cases.size(); ++i) {
      for (std::size_t rank = 0; rank < ranks(); ++rank) buffers[i].emplace_back(cases[i], rank);
    }
    return buffers;
  }

  void check(const std::vector<ExchangeCase>& cases, std::uint64_t seed = kFirstSeed) const {
    std::vector<std::vector<Buffers>> buffers = make_buffers(cases);
    run_calls(
        cases.size(),
        [&](std::size_t i, int rank) { return buffers[i][static_cast<std::size_t>(rank)].call(); },
        seed);
    for (std::size_t i = 0; i < cases.size(); ++i) {
      for (std::size_t rank = 0; rank < ranks(); ++rank) {
        SCOPED_TRACE(testing::Message()
                     << "rank " << rank << ", counts " << testing::PrintToString(cases[i].counts));
        buffers[i][rank].expect_exchanged();
      }
    }
  }
};

TEST_P(AllToAllContract, EveryDistributionOfCounts) {
  std::vector<ExchangeCase> cases;
  for (const Counts& counts : exchanges()) {
    for (const MoveCase& move : every_move(false)) cases.push_back({move, counts});
  }
  // Longer than the window, so that its memory is used again and again.
  const Counts many = all_counts([](std::size_t, std::size_t to) { return 2003 + to; });
  cases.push_back({{.segment_bytes = 4096}, many});
  check(cases);
}

TEST_P(AllToAllContract, WhateverTheTiming) {
  std::vector<ExchangeCase> cases;
  for (const Counts& counts : exchanges()) cases.push_back({{}, counts});
  for (std::uint64_t seed = kFirstSeed + 1; seed <= kLastSeed; ++seed) check(cases, seed);
}

TEST_P(AllToAllContract, AbandonedTasks_LeaveNothingBehind) {
  const ExchangeCase item{{}, all_counts([](std::size_t, std::size_t) { return 101u; })};
  for (int polls = 0; polls < 24; ++polls) {
    std::vector<std::vector<Buffers>> buffers = make_buffers({item});
    abandon_call(polls, [&](std::size_t, int rank) {
      return buffers[0][static_cast<std::size_t>(rank)].call();
    });
    for (const Buffers& buffer : buffers[0]) buffer.expect_bounds_kept();
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(AllToAllContract);

}  // namespace kolo::test

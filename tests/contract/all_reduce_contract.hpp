#pragma once

#include <vector>

#include "contract/algorithm_contract.hpp"
#include "contract/reduce_cases.hpp"

namespace kolo::test {

class AllReduceContract : public AlgorithmContract {
 protected:
  /// All ranks' memory for one case.
  struct Buffers {
    Buffers(const ReduceCase& item, int size) {
      for (int rank = 0; rank < size; ++rank) of_rank.emplace_back(item, rank);
      for (ReduceBuffers& buffer : of_rank) outputs.push_back(buffer.output());
    }

    std::vector<ReduceBuffers> of_rank;
    std::vector<std::byte*> outputs;
  };
  using Results = std::vector<std::vector<std::vector<std::byte>>>;  // by case and rank

  CollectiveCall call_of(Buffers& buffers, int rank) const {
    ReduceBuffers& own = buffers.of_rank[static_cast<std::size_t>(rank)];
    own.fill();
    CollectiveCall call = own.call();
    if (has_peer_buffers()) call.peer_buffers = buffers.outputs;
    return call;
  }

  std::vector<Buffers> make_buffers(std::vector<ReduceCase> cases) const {
    std::vector<Buffers> buffers;
    for (ReduceCase& item : cases) {
      if (has_peer_buffers()) item.in_place = true;
      buffers.emplace_back(item, size());
    }
    return buffers;
  }

  /// Runs the cases, then checks that nothing but the outputs was written.
  Results run(const std::vector<ReduceCase>& cases, const Timing& timing = {}) const {
    std::vector<Buffers> buffers = make_buffers(cases);
    run_calls(
        cases.size(), [&](std::size_t i, int rank) { return call_of(buffers[i], rank); },
        [&](std::size_t i, int rank) {
          buffers[i].of_rank[static_cast<std::size_t>(rank)].give_up();
        },
        timing);
    Results results(cases.size());
    for (std::size_t i = 0; i < cases.size(); ++i) {
      for (const ReduceBuffers& buffer : buffers[i].of_rank) {
        buffer.expect_guards_intact();
        results[i].push_back(buffer.result());
      }
    }
    return results;
  }

  /// Runs the cases, and compares results with the reference and between ranks.
  void check(const std::vector<ReduceCase>& cases) const {
    const Results results = run(cases);
    for (std::size_t i = 0; i < cases.size(); ++i) {
      for (std::size_t rank = 1; rank < ranks(); ++rank) {
        EXPECT_EQ(results[i][rank], results[i][0]) << cases[i] << ", ranks 0 and " << rank;
      }
      expect_reduced(cases[i], results[i][0], size(), algorithm().rank_ordered);
      if (HasFatalFailure()) return;
    }
  }
};

TEST_P(AllReduceContract, EveryCount) {
  std::vector<ReduceCase> cases;
  for (const std::size_t count :
       {std::size_t{0}, std::size_t{1}, ranks() - 1, ranks(), ranks() + 1, std::size_t{101},
        16 * ranks(), std::size_t{523}, 32 * ranks() + 1}) {  // one piece has one more segment
    for (const std::size_t segment_bytes : {64u, 192u, 4096u}) {
      for (const bool in_place : {false, true}) {
        cases.push_back({.count = count, .segment_bytes = segment_bytes, .in_place = in_place});
      }
    }
  }
  // Longer than the window, so that slots are reused.
  cases.push_back({.count = 9001, .segment_bytes = 4096});
  check(cases);
}

TEST_P(AllReduceContract, EveryTypeAndOperation) { check(every_type_and_operation()); }

TEST_P(AllReduceContract, EveryChunkingAndOffset) { check(every_chunking_and_offset()); }

TEST_P(AllReduceContract, SameBitsWhateverTheTiming) {
  const Results first = run(every_timing());
  for (const Timing& timing : other_timings()) {
    EXPECT_EQ(run(every_timing(), timing), first) << timing;
  }
}

TEST_P(AllReduceContract, AverageOfLargeHalves_StaysFinite) {
  check(average_of_large_halves(algorithm().rank_ordered, size()));
}

TEST_P(AllReduceContract, NotANumber_ReachesEveryRank) { check(not_a_number()); }

TEST_P(AllReduceContract, CustomReduction) { check(custom_reductions(algorithm().rank_ordered)); }

TEST_P(AllReduceContract, AbandonedTasks_LeaveNothingBehind) {
  const ReduceCase item{
      .dtype = DType::Float16, .reduction = {ReduceOp::Sum, 0.5}, .count = 300, .in_place = true};
  for (int polls = 0; polls < 24; ++polls) {
    std::vector<Buffers> buffers = make_buffers({item});
    abandon_call(polls, [&](std::size_t, int rank) { return call_of(buffers[0], rank); });
    for (const ReduceBuffers& buffer : buffers[0].of_rank) buffer.expect_guards_intact();
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(AllReduceContract);

}  // namespace kolo::test

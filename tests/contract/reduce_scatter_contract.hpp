#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>
#include <vector>

#include "contract/algorithm_contract.hpp"
#include "contract/reduce_cases.hpp"
#include "contract/scatter_buffers.hpp"

namespace kolo::test {

class ReduceScatterContract : public AlgorithmContract {
 protected:
  /// All ranks' memory for one case.
  struct Buffers {
    Buffers(const ScatterCase& item, int size) {
      for (int rank = 0; rank < size; ++rank) of_rank.emplace_back(item, rank);
      for (ScatterBuffers& buffer : of_rank) inputs.push_back(buffer.input());
    }

    std::vector<ScatterBuffers> of_rank;
    std::vector<std::byte*> inputs;
  };
  using Results = std::vector<std::vector<std::byte>>;  // by case, of all ranks, concatenated

  CollectiveCall call_of(Buffers& buffers, int rank) const {
    CollectiveCall call = buffers.of_rank[static_cast<std::size_t>(rank)].call();
    if (has_peer_buffers()) call.peer_buffers = buffers.inputs;
    return call;
  }

  std::vector<Buffers> make_buffers(const std::vector<ScatterCase>& cases) const {
    std::vector<Buffers> buffers;
    for (const ScatterCase& item : cases) buffers.emplace_back(item, size());
    return buffers;
  }

  /// Runs the cases, then checks that nothing but the results was written.
  Results run(const std::vector<ScatterCase>& cases, const Timing& timing = {}) const {
    std::vector<Buffers> buffers = make_buffers(cases);
    run_calls(
        cases.size(), [&](std::size_t i, int rank) { return call_of(buffers[i], rank); },
        [&](std::size_t i, int rank) {
          buffers[i].of_rank[static_cast<std::size_t>(rank)].give_up();
        },
        timing);
    Results results(cases.size());
    for (std::size_t i = 0; i < cases.size(); ++i) {
      for (const ScatterBuffers& buffer : buffers[i].of_rank) {
        buffer.expect_guards_intact();
        const std::span<const std::byte> result = buffer.result();
        results[i].insert(results[i].end(), result.begin(), result.end());
      }
    }
    return results;
  }

  /// Runs the cases and compares with the reference.
  void check(const std::vector<ScatterCase>& cases) const {
    const Results results = run(cases);
    for (std::size_t i = 0; i < cases.size(); ++i) {
      SCOPED_TRACE(testing::PrintToString(cases[i].counts));
      expect_reduced(cases[i].reduce, results[i], size(), algorithm().rank_ordered);
      if (HasFatalFailure()) return;
    }
  }

  /// Distributes the elements unevenly over the ranks; if there are several, some get none.
  std::vector<ScatterCase> spread(const std::vector<ReduceCase>& reductions) const {
    std::vector<ScatterCase> cases;
    for (const ReduceCase& reduce : reductions) {
      std::vector<std::size_t> counts(ranks());
      std::size_t rest = reduce.count;
      for (std::size_t rank = 0; rank + 1 < ranks(); ++rank) {
        counts[rank] = std::min(rest, reduce.count / ranks() * ((rank * 3 + 1) % 4));
        rest -= counts[rank];
      }
      counts.back() = rest;
      cases.push_back({reduce, counts});
    }
    return cases;
  }
};

TEST_P(ReduceScatterContract, EveryDistributionOfCounts) {
  std::vector<ScatterCase> cases;
  for (const std::vector<std::size_t>& counts : distributions()) {
    const std::size_t count = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
    for (const std::size_t segment_bytes : {64u, 192u, 4096u}) {
      for (const bool in_place : {false, true}) {
        cases.push_back(
            {{.count = count, .segment_bytes = segment_bytes, .in_place = in_place}, counts});
      }
    }
  }
  // Longer than the window, so that slots are reused.
  cases.push_back(
      {{.count = 2003 * ranks(), .segment_bytes = 4096}, std::vector<std::size_t>(ranks(), 2003)});
  check(cases);
}

TEST_P(ReduceScatterContract, EveryTypeAndOperation) { check(spread(every_type_and_operation())); }

TEST_P(ReduceScatterContract, EveryChunkingAndOffset) {
  check(spread(every_chunking_and_offset()));
}

TEST_P(ReduceScatterContract, SameBitsWhateverTheTiming) {
  const Results first = run(spread(every_timing()));
  for (const Timing& timing : other_timings()) {
    EXPECT_EQ(run(spread(every_timing()), timing), first) << timing;
  }
}

TEST_P(ReduceScatterContract, AverageOfLargeHalves_StaysFinite) {
  check(spread(average_of_large_halves(algorithm().rank_ordered, size())));
}

TEST_P(ReduceScatterContract, NotANumber_ReachesItsRank) { check(spread(not_a_number())); }

TEST_P(ReduceScatterContract, CustomReduction) {
  check(spread(custom_reductions(algorithm().rank_ordered)));
}

TEST_P(ReduceScatterContract, AbandonedTasks_LeaveNothingBehind) {
  const std::vector<ScatterCase> cases = spread({{.dtype = DType::Float16,
                                                  .reduction = {ReduceOp::Sum, 0.5},
                                                  .count = 300,
                                                  .in_place = true}});
  for (int polls = 0; polls < 24; ++polls) {
    std::vector<Buffers> buffers = make_buffers(cases);
    abandon_call(polls, [&](std::size_t, int rank) { return call_of(buffers[0], rank); });
    for (const ScatterBuffers& buffer : buffers[0].of_rank) buffer.expect_guards_intact();
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ReduceScatterContract);

}  // namespace kolo::test

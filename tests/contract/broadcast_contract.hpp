#pragma once

#include <cstddef>
#include <vector>

#include "contract/algorithm_contract.hpp"
#include "contract/guarded_buffer.hpp"
#include "contract/move_case.hpp"

namespace kolo::test {

class BroadcastContract : public AlgorithmContract {
 protected:
  struct BroadcastCase {
    MoveCase move;
    int root;
    std::size_t count;
  };

  static std::vector<std::byte> content(const BroadcastCase& item) {
    return bytes_between(static_cast<std::size_t>(item.root), 0,
                         item.count * size_of(item.move.dtype));
  }

  std::vector<std::vector<GuardedBuffer>> make_buffers(
      const std::vector<BroadcastCase>& cases) const {
    std::vector<std::vector<GuardedBuffer>> buffers(cases.size());
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const std::size_t element = size_of(cases[i].move.dtype);
      buffers[i].assign(ranks(),
                        GuardedBuffer(cases[i].count * element, cases[i].move.offset * element));
    }
    return buffers;
  }

  static CollectiveCall call_of(const BroadcastCase& item, GuardedBuffer& buffer, int rank) {
    if (rank == item.root) buffer.fill(content(item));
    return {.output = buffer.data(),
            .count = item.count,
            .dtype = item.move.dtype,
            .root = item.root,
            .segment_bytes = item.move.segment_bytes};
  }

  void check(const std::vector<BroadcastCase>& cases, std::uint64_t seed = kFirstSeed) const {
    std::vector<std::vector<GuardedBuffer>> buffers = make_buffers(cases);
    run_calls(
        cases.size(),
        [&](std::size_t i, int rank) {
          return call_of(cases[i], buffers[i][static_cast<std::size_t>(rank)], rank);
        },
        seed);
    for (std::size_t i = 0; i < cases.size(); ++i) {
      for (std::size_t rank = 0; rank < ranks(); ++rank) {
        SCOPED_TRACE(testing::Message() << cases[i].move << ", " << cases[i].count
                                        << " elements from " << cases[i].root << " to " << rank);
        EXPECT_TRUE(buffers[i][rank].holds(content(cases[i])));
        EXPECT_TRUE(buffers[i][rank].is_guard_intact()) << "written beside the buffer";
      }
    }
  }
};

TEST_P(BroadcastContract, EveryRootAndCount) {
  std::vector<BroadcastCase> cases;
  for (int root = 0; root < size(); ++root) {
    for (const std::size_t count : {0u, 1u, 16u, 33u, 331u}) {
      for (const MoveCase& move : every_move(true)) cases.push_back({move, root, count});
    }
  }
  // Longer than the window, so that its memory is used again and again.
  cases.push_back({{.segment_bytes = 4096}, size() - 1, 9001});
  check(cases);
}

TEST_P(BroadcastContract, WhateverTheTiming) {
  std::vector<BroadcastCase> cases;
  for (int root = 0; root < size(); ++root) cases.push_back({{}, root, 301});
  for (std::uint64_t seed = kFirstSeed + 1; seed <= kLastSeed; ++seed) check(cases, seed);
}

TEST_P(BroadcastContract, AbandonedTasks_LeaveNothingBehind) {
  const BroadcastCase item{{}, size() / 2, 301};
  for (int polls = 0; polls < 24; ++polls) {
    std::vector<std::vector<GuardedBuffer>> buffers = make_buffers({item});
    abandon_call(polls, [&](std::size_t, int rank) {
      return call_of(item, buffers[0][static_cast<std::size_t>(rank)], rank);
    });
    for (const GuardedBuffer& buffer : buffers[0]) EXPECT_TRUE(buffer.is_guard_intact());
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(BroadcastContract);

}  // namespace kolo::test

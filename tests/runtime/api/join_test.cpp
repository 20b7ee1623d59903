// Ranks that run out of work while others continue.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "kolo/shared_buffer.hpp"
#include "runtime/every_world.hpp"
#include "runtime/join_expectations.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"

namespace kolo::test::join_test {

using namespace std::chrono_literals;
using namespace joins;

class JoinTest : public EveryWorldTest {};

INSTANTIATE_TEST_SUITE_P(, JoinTest, testing::ValuesIn(all_settings()), name_of_setting);

/// Rank r of the set runs `steps(r)` rounds, then joins. The values of `steps` differ, and the rank
/// with the most rounds joins last.
void run_uneven(ProcessSet& set, const std::function<int(int)>& steps) {
  int last = 0;
  for (int rank = 0; rank < set.size(); ++rank) {
    if (steps(rank) > steps(last)) last = rank;
  }
  for (int step = 0; step < steps(set.rank()); ++step) {
    std::vector<int> ranks;
    for (int rank = 0; rank < set.size(); ++rank) {
      if (step < steps(rank)) ranks.push_back(rank);
    }
    const Active active(set, ranks);
    expect_reductions(active);
    expect_adasum(active);
    expect_moves(active, last);
    expect_groups(active);
  }
  EXPECT_EQ(join(&set), set.ranks()[static_cast<std::size_t>(last)]);
}

TEST_P(JoinTest, EveryOperation_RunsWithoutJoinedRanks) {
  run([&](Runtime& runtime) {
    run_uneven(runtime.world(), [](int rank) { return rank; });
    run_uneven(runtime.world(), [&](int rank) { return size() - rank; });
    expect_sum_works(runtime, "x");
  });
}

TEST_P(JoinTest, ManyJoinsInARow_Complete) {
  run([&](Runtime& runtime) {
    for (int round = 0; round < 15; ++round) {
      const auto steps = [&](int rank) { return (rank * 5 + round * 3) % 7; };
      for (int step = 0; step < steps(runtime.rank()); ++step) {
        std::vector<int> ranks;
        for (int rank = 0; rank < size(); ++rank) {
          if (step < steps(rank)) ranks.push_back(rank);
        }
        const Active active(runtime.world(), ranks);
        Tensor tensor(20);
        tensor.fill([&](std::size_t i) { return Active::input(runtime.rank(), i); });
        allreduce(tensor.view(), tensor.view(), {.op = ReduceOp::Sum, .name = "x"});
        tensor.expect([&](std::size_t i) { return active.sum(i); }, "x");
      }
      const int last = join();
      Tensor said(DType::Int32, {1});
      said.fill([&](std::size_t) { return last; });
      allreduce(said.view(), said.view(), {.op = ReduceOp::Max, .name = "said"});
      said.expect([&](std::size_t) { return last; }, "the last rank, said the same by all");
    }
  });
}

TEST_P(JoinTest, SubmittedBeforeTheJoin_CountsInFull) {
  run([&](Runtime& runtime) {
    for (const bool is_known : {false, true}) {
      if (is_known) {
        Tensor tensor(9);
        allreduce(tensor.view(), tensor.view(), {.join_divisor = JoinDivisor::Active, .name = "x"});
        broadcast(tensor.view(), 0, {.name = "from the first"});
      }
      Tensor tensor(9);
      Tensor sent(9);
      tensor.fill([&](std::size_t i) { return Active::input(runtime.rank(), i); });
      sent.fill([&](std::size_t i) { return Active::input(runtime.rank(), i); });
      if (runtime.rank() != 0) wait_until_joined("the first");
      Handle reduced = allreduce_async(tensor.view(), tensor.view(),
                                       {.join_divisor = JoinDivisor::Active, .name = "x"});
      Handle broadcast = broadcast_async(sent.view(), 0, {.name = "from the first"});
      join();
      EXPECT_TRUE(reduced.is_ready());
      reduced.wait();
      broadcast.wait();
      std::vector<int> all;
      for (int rank = 0; rank < size(); ++rank) all.push_back(rank);
      const Active active(runtime.world(), all);
      tensor.expect([&](std::size_t i) { return active.sum(i) / size(); }, "x", 1e-6);
      sent.expect([&](std::size_t i) { return Active::input(0, i); }, "broadcast");
    }
  });
}

TEST_P(JoinTest, SubmittedByOneRank_RunsWithThatRankAlone) {
  run([&](Runtime& runtime) {
    for (int round = 0; round < 3; ++round) {
      Tensor mean(6);
      Tensor integers(6, DType::Int32);
      const auto formula = [&](std::size_t i) { return Active::input(runtime.rank(), i); };
      mean.fill(formula);
      integers.fill(formula);
      const std::string own = "of rank " + std::to_string(runtime.rank());
      Handle first = allreduce_async(mean.view(), mean.view(),
                                     {.join_divisor = JoinDivisor::Active, .name = own + " mean"});
      Handle second =
          allreduce_async(integers.view(), integers.view(),
                          {.join_divisor = JoinDivisor::Active, .name = own + " integers"});
      join();
      EXPECT_TRUE(first.is_ready());
      EXPECT_TRUE(second.is_ready());
      first.wait();
      second.wait();
      mean.expect(formula, own);
      integers.expect(formula, own);
    }
  });
}

TEST_P(JoinTest, SharedBuffers_AreReducedWithoutJoinedRanks) {
  run([&](Runtime& runtime) {
    constexpr std::size_t kCount = 3001;
    const SharedBuffer buffer(kCount * sizeof(float), {.name = "memory"});
    auto* const values = reinterpret_cast<float*>(buffer.data());
    for (int step = 0; step <= runtime.rank(); ++step) {
      std::vector<int> ranks;
      for (int rank = step; rank < size(); ++rank) ranks.push_back(rank);
      const Active active(runtime.world(), ranks);
      for (std::size_t i = 0; i < kCount; ++i) {
        values[i] = static_cast<float>(Active::input(runtime.rank(), i));
      }
      allreduce_async(buffer, 0, kCount, DType::Float32, {.op = ReduceOp::Sum, .name = "x"}).wait();
      for (std::size_t i = 0; i < kCount; ++i) {
        ASSERT_EQ(values[i], active.sum(i)) << "element " << i << " in step " << step;
      }
      // Created while some ranks have joined.
      const SharedBuffer another(64, {.name = "another"});
      EXPECT_EQ(another.data()[63], std::byte{0});
    }
    // A rank's part of the buffer is not written after it has joined.
    join();
    for (std::size_t i = 0; i < kCount; ++i) {
      std::vector<int> ranks;
      for (int rank = runtime.rank(); rank < size(); ++rank) ranks.push_back(rank);
      ASSERT_EQ(values[i], Active(runtime.world(), ranks).sum(i)) << "element " << i;
    }
  });
}

TEST_P(JoinTest, RequestForAJoinedRanksData_FailsOnAllOthers) {
  if (size() == 1) GTEST_SKIP() << "no other rank is left";
  run([&](Runtime& runtime) {
    ProcessSet& kept = runtime.add_process_set({0, size() - 1});
    for (int round = 0; round < 2; ++round) {
      const int joined = round == 0 ? 0 : size() - 1;
      const std::string who = "rank " + std::to_string(joined);
      expect_sum_works(runtime, "before");
      if (runtime.rank() != joined) {
        Tensor tensor(5);
        const std::string root = text_thrown_by<InvalidArgument>(
            [&] { broadcast(tensor.view(), joined, {.name = "x"}); });
        expect_contains(root,
                        "broadcast 'x' on process set world: the root " + who + " has joined");

        const std::vector<std::int64_t> splits(static_cast<std::size_t>(size()), 1);
        const Tensor rows(size());
        Rows output{DType::Float32, 1};
        const std::string sent = text_thrown_by<InvalidArgument>(
            [&] { alltoall(rows.view(), splits, output.allocator(), {.name = "y"}); });
        const std::string sender = joined == 0 ? "rank 1" : "rank 0";  // the first that sends any
        expect_contains(sent, "alltoall 'y' on process set world: " + sender + " sends rows to " +
                                  who + ", which has joined");

        const std::string added =
            text_thrown_by<InvalidArgument>([&] { runtime.add_process_set({0}); });
        expect_contains(added, who + " has joined, and all ranks must take part");
        const std::string removed =
            text_thrown_by<InvalidArgument>([&] { runtime.remove_process_set(kept); });
        expect_contains(removed, who + " has joined, and all ranks must take part");
        barrier({.name = "the set works on"});
      }
      join();
    }
    ProcessSet& added = runtime.add_process_set({0, size() - 1});
    EXPECT_EQ(added.number(), 2);
    for (ProcessSet* const set : {&kept, &added}) {
      if (set->included()) expect_sum_works(*set, "x");
      runtime.remove_process_set(*set);
    }
    expect_sum_works(runtime, "x");
  });
}

TEST_P(JoinTest, OverlappingProcessSets_JoinSeparately) {
  run([&](Runtime& runtime) {
    std::vector<int> front;
    std::vector<int> back;
    for (int rank = 0; rank < size(); ++rank) {
      if (rank <= size() / 2) front.push_back(rank);
      if (rank >= size() / 2) back.push_back(rank);
    }
    ProcessSet& first = runtime.add_process_set(front);
    ProcessSet& second = runtime.add_process_set(back);
    // Ranks that joined one set continue in the other, and in the world.
    if (first.included()) run_uneven(first, [](int rank) { return rank + 1; });
    if (second.included()) run_uneven(second, [&](int rank) { return 2 * second.size() - rank; });
    expect_sum_works(runtime, "x");
    if (first.included() && first.rank() == 0) {
      join(&first);
    } else if (first.included()) {
      Handle waiting = barrier_async({.name = "b", .process_set = &first});
      waiting.wait();
      join(&first);
    }
    expect_sum_works(runtime, "x");
  });
}

}  // namespace kolo::test::join_test

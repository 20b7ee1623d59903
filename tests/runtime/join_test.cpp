// Ranks that run out of work while others go on.
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
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"

namespace kolo::test::join_test {

using namespace std::chrono_literals;

class JoinTest : public EveryWorldTest {};

INSTANTIATE_TEST_SUITE_P(, JoinTest, testing::ValuesIn(all_settings()), [](const auto& setting) {
  return setting.param.name + "Np" + std::to_string(setting.param.size);
});

/// Returns once `who`, the ranks that do not call this, have joined: it cannot run before.
void wait_until_joined(const std::string& who) { barrier({.name = who + " joined"}); }

/// Ranks of a set that still take part, and what comes of their inputs.
class Active {
 public:
  Active(ProcessSet& set, std::vector<int> ranks) : set_(set), ranks_(std::move(ranks)) {}

  ProcessSet& set() const { return set_; }
  int count() const { return static_cast<int>(ranks_.size()); }
  bool has(int rank) const { return std::find(ranks_.begin(), ranks_.end(), rank) != ranks_.end(); }

  static double input(int rank, std::size_t i) {
    return static_cast<double>((i * 3 + static_cast<std::size_t>(rank) * 5) % 7) - 3;
  }
  double sum(std::size_t i, double scale = 1) const {
    double sum = 0;
    for (const int rank : ranks_) sum += std::trunc(input(rank, i) * scale);
    return sum;
  }
  double least(std::size_t i, double scale) const {
    double least = input(ranks_[0], i) * scale;
    for (const int rank : ranks_) least = std::min(least, input(rank, i) * scale);
    return least;
  }
  double greatest(std::size_t i, double scale) const { return -least(i, -scale); }
  double product(std::size_t i, double scale) const {
    double product = 1;
    for (const int rank : ranks_) product *= input(rank, i) * scale;
    return product;
  }

 private:
  ProcessSet& set_;
  std::vector<int> ranks_;
};

struct ReduceCase {
  std::string name;
  DType dtype;
  AllreduceOptions options;
  std::function<double(const Active&, std::size_t)> expected;
};

std::vector<ReduceCase> reduce_cases() {
  const auto sum = [](const Active& active, std::size_t i) { return active.sum(i); };
  const auto active_mean = [](const Active& active, std::size_t i) {
    return active.sum(i) / active.count();
  };
  const auto truncated = [](auto formula) {
    return
        [formula](const Active& active, std::size_t i) { return std::trunc(formula(active, i)); };
  };
  const auto mean = [](const Active& active, std::size_t i) {
    return active.sum(i) / active.set().size();
  };
  return {
      {"sum", DType::Float32, {.op = ReduceOp::Sum}, sum},
      {"mean", DType::Float32, {}, mean},
      {"mean of active", DType::Float32, {.join_divisor = JoinDivisor::Active}, active_mean},
      {"integer mean", DType::Int32, {}, truncated(mean)},
      {"integer mean of active",
       DType::Int8,
       {.join_divisor = JoinDivisor::Active},
       truncated(active_mean)},
      {"half mean of active", DType::Float16, {.join_divisor = JoinDivisor::Active}, active_mean},
      {"compressed",
       DType::Float32,
       {.op = ReduceOp::Sum, .prescale = 0.5, .postscale = 4, .compression = Compression::bf16()},
       [](const Active& active, std::size_t i) { return 2 * active.sum(i); }},
      {"min",
       DType::Int16,
       {.op = ReduceOp::Min, .prescale = -2},
       [](const Active& active, std::size_t i) { return active.least(i, -2); }},
      {"max",
       DType::Float64,
       {.op = ReduceOp::Max, .prescale = -0.5},
       [](const Active& active, std::size_t i) { return active.greatest(i, -0.5); }},
      {"compressed min",
       DType::Float32,
       {.op = ReduceOp::Min, .prescale = 0.25, .compression = Compression::fp16()},
       [](const Active& active, std::size_t i) { return active.least(i, 0.25); }},
      {"product",
       DType::Float32,
       {.op = ReduceOp::Product, .prescale = 2, .postscale = 0.5},
       [](const Active& active, std::size_t i) { return active.product(i, 2) / 2; }},
      {"integer product",
       DType::Int64,
       {.op = ReduceOp::Product, .prescale = 3},
       [](const Active& active, std::size_t i) { return active.product(i, 3); }},
  };
}

void expect_reductions(const Active& active) {
  ProcessSet& set = active.set();
  for (const ReduceCase& item : reduce_cases()) {
    constexpr std::int64_t kRows = 37;
    const std::int64_t own = scattered_rows(kRows, set.size(), set.rank());
    std::int64_t begin = 0;
    for (int rank = 0; rank < set.rank(); ++rank) begin += scattered_rows(kRows, set.size(), rank);
    Tensor tensor(kRows, item.dtype);
    Tensor part(own, item.dtype);
    tensor.fill([&](std::size_t i) { return Active::input(set.rank(), i); });
    AllreduceOptions options = item.options;
    options.process_set = &set;
    options.name = item.name + " scattered";
    reduce_scatter(tensor.view(), part.view(), options);
    options.name = item.name;
    allreduce(tensor.view(), tensor.view(), options);
    const double rounding = item.dtype == DType::Float16 ? 0x1p-9 : 1e-6;
    tensor.expect([&](std::size_t i) { return item.expected(active, i); }, item.name, rounding);
    part.expect(
        [&](std::size_t i) { return item.expected(active, static_cast<std::size_t>(begin) + i); },
        options.name, rounding);
  }
}

/// Whoever has joined gives zeros: equal vectors of the others stay, orthogonal ones add up.
void expect_adasum(const Active& active) {
  ProcessSet& set = active.set();
  const auto owner = [&](std::size_t i) {
    return static_cast<int>(i % static_cast<std::size_t>(set.size()));
  };
  Tensor alike(23);
  Tensor apart(23);
  alike.fill([](std::size_t i) { return static_cast<double>(i) - 9; });
  apart.fill(
      [&](std::size_t i) { return owner(i) == set.rank() ? static_cast<double>(i) + 1 : 0.0; });
  allreduce(alike.view(), alike.view(),
            {.op = ReduceOp::Adasum, .name = "alike", .process_set = &set});
  allreduce(apart.view(), apart.view(),
            {.op = ReduceOp::Adasum, .name = "apart", .process_set = &set});
  alike.expect([](std::size_t i) { return static_cast<double>(i) - 9; }, "Adasum of equals");
  apart.expect(
      [&](std::size_t i) { return active.has(owner(i)) ? static_cast<double>(i) + 1 : 0.0; },
      "Adasum of orthogonals");
}

/// `root` is active.
void expect_moves(const Active& active, int root) {
  ProcessSet& set = active.set();
  const auto value = [](int rank, std::size_t i) {
    return 100.0 * rank + static_cast<double>(i % 50);
  };
  Tensor sent(30);
  sent.fill([&](std::size_t i) { return value(set.rank(), i); });
  broadcast(sent.view(), set.ranks()[static_cast<std::size_t>(root)],
            {.name = "broadcast", .process_set = &set});
  sent.expect([&](std::size_t i) { return value(root, i); }, "broadcast");

  Tensor input(DType::Float32, {set.rank() % 2 + 2, 2});
  input.fill([&](std::size_t i) { return value(set.rank(), i); });
  Rows gathered{DType::Float32, 2};
  allgather(input.view(), gathered.allocator(), {.name = "gather", .process_set = &set});
  std::size_t at = 0;
  for (int rank = 0; rank < set.size(); ++rank) {
    const std::int64_t rows = active.has(rank) ? rank % 2 + 2 : 0;
    ASSERT_EQ(gathered.counts.at(static_cast<std::size_t>(rank)), rows) << "rank " << rank;
    for (std::size_t i = 0; i < static_cast<std::size_t>(2 * rows); ++i) {
      ASSERT_EQ(gathered.at(at++), value(rank, i)) << "gathered from rank " << rank;
    }
  }

  std::vector<std::int64_t> splits;
  for (int to = 0; to < set.size(); ++to) splits.push_back(active.has(to) ? to + 1 : 0);
  std::int64_t rows = 0;
  for (const std::int64_t split : splits) rows += split;
  Tensor outgoing(rows);
  outgoing.fill([&](std::size_t i) { return value(set.rank(), i); });
  std::size_t before = 0;  // what every active rank sends to those before this one
  for (int to = 0; to < set.rank(); ++to) {
    before += static_cast<std::size_t>(splits[static_cast<std::size_t>(to)]);
  }
  Rows received{DType::Float32, 1};
  alltoall(outgoing.view(), splits, received.allocator(), {.name = "all", .process_set = &set});
  at = 0;
  for (int from = 0; from < set.size(); ++from) {
    const std::int64_t count = active.has(from) ? set.rank() + 1 : 0;
    ASSERT_EQ(received.counts.at(static_cast<std::size_t>(from)), count) << "from " << from;
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
      ASSERT_EQ(received.at(at++), value(from, before + i)) << "from " << from << ", row " << i;
    }
  }
  barrier({.name = "barrier", .process_set = &set});
}

void expect_groups(const Active& active) {
  ProcessSet& set = active.set();
  std::vector<Tensor> members;
  members.emplace_back(40);
  members.emplace_back(0);
  members.emplace_back(7, DType::Int64);
  std::vector<InputOutput> tensors;
  for (Tensor& member : members) {
    member.fill([&](std::size_t i) { return Active::input(set.rank(), i); });
    tensors.push_back({member.view(), member.view()});
  }
  grouped_allreduce(tensors, {.op = ReduceOp::Sum, .name = "group", .process_set = &set});
  for (const Tensor& member : members) {
    member.expect([&](std::size_t i) { return active.sum(i); }, "group");
  }
}

/// Rank r of the set works for `steps(r)` rounds, then joins; `steps` differ, and the rank with the
/// most is the last to join.
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

TEST_P(JoinTest, EveryOperationGoesOnWithoutThoseWhoJoined) {
  run([&](Runtime& runtime) {
    run_uneven(runtime.world(), [](int rank) { return rank; });
    run_uneven(runtime.world(), [&](int rank) { return size() - rank; });
    expect_sum_works(runtime, "x");
  });
}

TEST_P(JoinTest, ManyInARow) {
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

TEST_P(JoinTest, WhatWasSubmittedBeforeCountsInFull) {
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

TEST_P(JoinTest, WhatOneRankAloneSubmittedRunsWithThatRankAlone) {
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

TEST_P(JoinTest, SharedBuffersAreReducedWithoutThoseWhoJoined) {
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
      // Made while some have joined.
      const SharedBuffer another(64, {.name = "another"});
      EXPECT_EQ(another.data()[63], std::byte{0});
    }
    // What a joined rank has there is its own.
    join();
    for (std::size_t i = 0; i < kCount; ++i) {
      std::vector<int> ranks;
      for (int rank = runtime.rank(); rank < size(); ++rank) ranks.push_back(rank);
      ASSERT_EQ(values[i], Active(runtime.world(), ranks).sum(i)) << "element " << i;
    }
  });
}

TEST_P(JoinTest, AsksForWhatAJoinedRankCannotGiveFailOnAllOthers) {
  if (size() == 1) GTEST_SKIP() << "nobody is left to ask";
  run([&](Runtime& runtime) {
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
        expect_contains(sent, "alltoall 'y' on process set world: rank ");
        expect_contains(sent, "sends rows to " + who + ", which has joined");

        const std::string added =
            text_thrown_by<InvalidArgument>([&] { runtime.add_process_set({0}); });
        expect_contains(added, who + " has joined, and all ranks must take part");
        barrier({.name = "the set works on"});
      }
      join();
    }
    ProcessSet& added = runtime.add_process_set({0, size() - 1});
    EXPECT_EQ(added.number(), 1);
    if (added.included()) expect_sum_works(added, "x");
    expect_sum_works(runtime, "x");
  });
}

TEST_P(JoinTest, OnProcessSetsThatOverlap) {
  run([&](Runtime& runtime) {
    std::vector<int> front;
    std::vector<int> back;
    for (int rank = 0; rank < size(); ++rank) {
      if (rank <= size() / 2) front.push_back(rank);
      if (rank >= size() / 2) back.push_back(rank);
    }
    ProcessSet& first = runtime.add_process_set(front);
    ProcessSet& second = runtime.add_process_set(back);
    // Whoever has joined one of them works on in the other, and in the world.
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

// --- when things go wrong ---

class JoinFailureTest : public testing::TestWithParam<Setting> {};

INSTANTIATE_TEST_SUITE_P(
    , JoinFailureTest,
    testing::Values(Setting{.name = "Shared", .size = 3},
                    Setting{.name = "Messages",
                            .size = 3,
                            .network = {.nodes = 3, .longest_delay = 100us, .rendezvous = true}}),
    [](const auto& setting) { return setting.param.name; });

TEST_P(JoinFailureTest, OfTwoAtOnceOnOneRankTheSecondIsRefused) {
  std::atomic<int> refused{0};
  run_runtimes(GetParam(), [&](Runtime& runtime) {
    ProcessSet& world = runtime.world();
    const auto try_to_join = [&] {
      try {
        join(&world);
      } catch (const InvalidArgument& error) {
        expect_contains(error.what(), "join on process set world");
        ++refused;
      }
    };
    if (runtime.rank() == 1) {
      std::thread other(try_to_join);
      try_to_join();
      other.join();
    } else {
      while (refused == 0) std::this_thread::sleep_for(1ms);
      join();
    }
    expect_sum_works(runtime, "x");
  });
  EXPECT_EQ(refused, 1);
}

TEST_P(JoinFailureTest, MismatchesOfTheOthersAreFoundAndTheJoinGoesOn) {
  run_runtimes(GetParam(), [](Runtime& runtime) {
    expect_sum_works(runtime, "x");
    if (runtime.rank() != 1) {
      const Tensor tensor(4 + runtime.rank());
      const std::string text = text_thrown_by<MismatchError>(
          [&] { allreduce(tensor.view(), tensor.view(), {.name = "x"}); });
      expect_contains(text, "[4] on rank 0, [6] on rank 2");
      barrier({.name = "b"});
    }
    join();
    expect_sum_works(runtime, "x");  // the error was no use of the joined rank's
  });
}

TEST_P(JoinFailureTest, TimeoutsNameNobodyWhoHasJoined) {
  std::latch given_up(1);
  run_runtimes(GetParam(), [&](Runtime& runtime) {
    expect_sum_works(runtime, "x");
    if (runtime.rank() == 0) {
      Tensor tensor(5);
      const std::string text = text_thrown_by<TimeoutError>([&] {
        allreduce(tensor.view(), tensor.view(),
                  {.op = ReduceOp::Sum, .name = "x", .timeout = 100ms});
      });
      given_up.count_down();
      expect_contains(text, "the deadline passed on rank 0 while rank 2 had not submitted it");
    }
    if (runtime.rank() == 2) {
      given_up.wait();
      Tensor tensor(5);
      EXPECT_THROW(allreduce(tensor.view(), tensor.view(), {.op = ReduceOp::Sum, .name = "x"}),
                   TimeoutError);
    }
    join();
    expect_sum_works(runtime, "x");
  });
}

TEST_P(JoinFailureTest, AShutdownEndsIt) {
  run_runtimes(GetParam(), [](Runtime& runtime) {
    expect_sum_works(runtime, "x");
    if (runtime.rank() == 2) {
      wait_until_joined("all others");
      runtime.shutdown();
    }
    const std::string text = text_thrown_by<ShutdownError>([] { join(); });
    expect_contains(text, "join on process set world");
    if (runtime.rank() != 2) expect_contains(text, "rank 2 shut Kolo down");
    EXPECT_THROW(join(), ShutdownError);
  });
}

TEST_P(JoinFailureTest, ADeathEndsIt) {
  Setting setting = GetParam();
  setting.config.lost_after = 300ms;
  std::latch all_have_summed(setting.size);
  std::latch survivors_know(setting.size - 1);
  run_ranks(
      setting.size,
      [&](FakeWorld& world) {
        Runtime runtime(options_in(world, setting.config));
        Runtime::set_thread_current(&runtime);
        expect_sum_works(runtime, "x");
        all_have_summed.arrive_and_wait();
        if (runtime.rank() == 1) {
          wait_until_joined("all others");
          world.die();
          survivors_know.wait();
          return;
        }
        const std::string text = text_thrown_by<PeerLostError>([] { join(); });
        expect_contains(text, "rank 1 died");
        survivors_know.count_down();
      },
      setting.network);
}

}  // namespace kolo::test::join_test

// Process sets: made at the start or later, overlapping, removed, and independent of one another.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <latch>
#include <limits>
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

namespace kolo::test::process_set_test {

using namespace std::chrono_literals;

using Ranks = std::vector<int>;

class ProcessSetTest : public EveryWorldTest {};

INSTANTIATE_TEST_SUITE_P(, ProcessSetTest, testing::ValuesIn(all_settings()),
                         [](const auto& setting) {
                           return setting.param.name + "Np" + std::to_string(setting.param.size);
                         });

/// Every collective once on a set that this rank is a member of. Inputs differ by world rank.
void expect_all_work(ProcessSet& set) {
  const auto value = [&](int member, std::size_t i) {
    return input_value(set.ranks()[static_cast<std::size_t>(member)], i);
  };
  const auto sum = [&](std::size_t i) {
    double total = 0;
    for (int member = 0; member < set.size(); ++member) total += value(member, i);
    return total;
  };
  const auto own = [&](std::size_t i) { return value(set.rank(), i); };
  Tensor tensor(50);
  tensor.fill(own);
  const std::int64_t rows = scattered_rows(50, set.size(), set.rank());
  std::int64_t begin = 0;
  for (int member = 0; member < set.rank(); ++member) {
    begin += scattered_rows(50, set.size(), member);
  }
  Tensor part(rows);
  reduce_scatter(tensor.view(), part.view(), {.op = ReduceOp::Sum, .process_set = &set});
  part.expect([&](std::size_t i) { return sum(static_cast<std::size_t>(begin) + i); }, "scattered");
  allreduce(tensor.view(), tensor.view(), {.name = "mean", .process_set = &set});
  tensor.expect([&](std::size_t i) { return sum(i) / set.size(); }, "mean", 1e-6);

  Tensor floats(9);
  Tensor integers(4, DType::Int64);
  floats.fill(own);
  integers.fill(own);
  grouped_allreduce({{floats.view(), floats.view()}, {integers.view(), integers.view()}},
                    {.op = ReduceOp::Sum, .process_set = &set});
  floats.expect(sum, "floats of a group");
  integers.expect(sum, "integers of a group");

  Tensor alike(9);
  Tensor apart(9);  // orthogonal to the other members'
  alike.fill([](std::size_t i) { return static_cast<double>(i) - 3; });
  apart.fill([&](std::size_t i) {
    const bool is_own =
        i % static_cast<std::size_t>(set.size()) == static_cast<std::size_t>(set.rank());
    return is_own ? static_cast<double>(i) + 1 : 0.0;
  });
  for (const Tensor* const vector : {&alike, &apart}) {
    allreduce(vector->view(), vector->view(), {.op = ReduceOp::Adasum, .process_set = &set});
  }
  alike.expect([](std::size_t i) { return static_cast<double>(i) - 3; }, "Adasum of equals");
  apart.expect([](std::size_t i) { return static_cast<double>(i) + 1; }, "Adasum of orthogonals");

  for (int member = 0; member < set.size(); ++member) {
    Tensor sent(9);
    sent.fill(own);
    const int root = set.ranks()[static_cast<std::size_t>(member)];
    broadcast(sent.view(), root, {.process_set = &set});
    sent.expect([&](std::size_t i) { return value(member, i); }, "from " + std::to_string(root));
  }

  Tensor input(DType::Float32, {set.rank(), 2});
  input.fill(own);
  Rows gathered{DType::Float32, 2};
  allgather(input.view(), gathered.allocator(), {.process_set = &set});
  std::size_t at = 0;
  for (int member = 0; member < set.size(); ++member) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(2 * member); ++i) {
      ASSERT_EQ(gathered.at(at++), value(member, i)) << "gathered from member " << member;
    }
  }

  Tensor outgoing(set.size());
  outgoing.fill([&](std::size_t to) { return 10.0 * set.rank() + static_cast<double>(to); });
  Rows received{DType::Float32, 1};
  alltoall(outgoing.view(), {}, received.allocator(), {.process_set = &set});
  for (int from = 0; from < set.size(); ++from) {
    ASSERT_EQ(received.at(static_cast<std::size_t>(from)), 10.0 * from + set.rank());
  }
  barrier({.process_set = &set});

  const SharedBuffer buffer(400, {.process_set = &set});
  auto* const values = reinterpret_cast<float*>(buffer.data());
  for (std::size_t i = 0; i < 100; ++i) values[i] = static_cast<float>(own(i));
  allreduce_async(buffer, 0, 100, DType::Float32, {.op = ReduceOp::Sum, .process_set = &set})
      .wait();
  for (std::size_t i = 0; i < 100; ++i) ASSERT_EQ(values[i], sum(i)) << "shared, element " << i;
}

std::vector<Ranks> some_sets(int size) {
  Ranks all;
  Ranks even;
  Ranks odd;
  for (int rank = 0; rank < size; ++rank) {
    all.push_back(rank);
    (rank % 2 == 0 ? even : odd).push_back(rank);
  }
  std::vector<Ranks> sets{all, even, {size - 1}, {size - 1, 0}, even};
  if (size == 1) sets[3] = {0};
  if (!odd.empty()) sets.push_back(odd);
  return sets;
}

TEST_P(ProcessSetTest, ThatWereAddedLaterRunEverything) {
  run([&](Runtime& runtime) {
    std::vector<ProcessSet*> sets;
    for (Ranks ranks : some_sets(size())) {
      ProcessSet& set = runtime.add_process_set(ranks);
      sets.push_back(&set);
      std::sort(ranks.begin(), ranks.end());
      EXPECT_EQ(set.ranks(), ranks);
      EXPECT_EQ(set.number(), static_cast<int>(sets.size()));
      EXPECT_EQ(set.size(), static_cast<int>(ranks.size()));
      EXPECT_EQ(&runtime.process_set(set.number()), &set);
      const auto place = std::find(ranks.begin(), ranks.end(), runtime.rank());
      EXPECT_EQ(set.included(), place != ranks.end());
      EXPECT_EQ(set.rank(), set.included() ? static_cast<int>(place - ranks.begin()) : -1);
      if (set.included()) expect_all_work(set);
    }
    for (ProcessSet* const set : sets) {  // the earlier ones still work
      if (set->included()) expect_all_work(*set);
    }
    expect_all_work(runtime.world());
  });
}

TEST_P(ProcessSetTest, ThatAreThereFromTheStartRunEverything) {
  run_ranks(
      size(),
      [&](FakeWorld& world) {
        InitOptions options = options_in(world, GetParam().config);
        options.process_sets = some_sets(size());
        Runtime runtime(std::move(options));
        Runtime::set_thread_current(&runtime);
        for (int number = 1; number <= static_cast<int>(some_sets(size()).size()); ++number) {
          ProcessSet& set = runtime.process_set(number);
          EXPECT_EQ(set.number(), number);
          if (set.included()) expect_all_work(set);
        }
        ProcessSet& later = runtime.add_process_set({0});
        EXPECT_EQ(later.number(), static_cast<int>(some_sets(size()).size()) + 1);
      },
      GetParam().network);
}

TEST_P(ProcessSetTest, WorkAtTheSameTime) {
  run([&](Runtime& runtime) {
    std::vector<ProcessSet*> sets{&runtime.world()};
    for (const Ranks& ranks : some_sets(size())) {
      ProcessSet& set = runtime.add_process_set(ranks);
      if (set.included()) sets.push_back(&set);
    }
    for (std::size_t step = 0; step < 10; ++step) {
      std::vector<Tensor> tensors;
      std::vector<Handle> handles;
      for (std::size_t s = 0; s < sets.size(); ++s) {
        // Another order on every rank.
        ProcessSet& set = *sets[(s + static_cast<std::size_t>(runtime.rank())) % sets.size()];
        Tensor& tensor = tensors.emplace_back(30 + set.number());
        tensor.fill([&](std::size_t i) { return input_value(set.rank(), i, step); });
        handles.push_back(allreduce_async(tensor.view(), tensor.view(),
                                          {.op = ReduceOp::Sum, .name = "x", .process_set = &set}));
      }
      for (std::size_t s = 0; s < sets.size(); ++s) {
        handles[s].wait();
        const ProcessSet& set = *sets[(s + static_cast<std::size_t>(runtime.rank())) % sets.size()];
        tensors[s].expect([&](std::size_t i) { return input_sum(set.size(), i, step); },
                          set.name());
      }
    }
  });
}

TEST_P(ProcessSetTest, ComeAndGo) {
  run([&](Runtime& runtime) {
    for (int round = 1; round <= 10; ++round) {
      Ranks ranks{round % size()};
      if (size() > 1) ranks.push_back((round + 1) % size());
      ProcessSet& set = runtime.add_process_set(ranks);
      EXPECT_EQ(set.number(), round);  // no number comes twice
      if (set.included()) expect_sum_works(set, "x");
      runtime.remove_process_set(set);
      expect_contains(text_thrown_by<InvalidArgument>([&] { runtime.process_set(round); }),
                      "no process set number " + std::to_string(round));
    }
    expect_sum_works(runtime, "x");
  });
}

// --- independence: one set is held by a latch while another one does all its work ---

class IndependenceTest : public testing::TestWithParam<Setting> {};

INSTANTIATE_TEST_SUITE_P(
    , IndependenceTest,
    testing::Values(Setting{.name = "Shared", .size = 3},
                    Setting{.name = "Messages",
                            .size = 3,
                            .network = {.nodes = 3, .longest_delay = 100us, .rendezvous = true}}),
    [](const auto& setting) { return setting.param.name; });

constexpr int kRounds = 100;  // of the other set, meanwhile

TEST_P(IndependenceTest, AnOperationThatIsHeldWhileItRunsHoldsNoOtherSet) {
  for (const bool is_driven_by_a_caller : {false, true}) {
    std::latch has_begun(1);
    std::latch released(1);
    run_runtimes(GetParam(), [&](Runtime& runtime) {
      ProcessSet& held = runtime.add_process_set({0, 1, 2});
      ProcessSet& other = runtime.add_process_set({0, 1, 2});
      Rows output{DType::Float32, 1};
      AllocateRows allocate = output.allocator();
      if (runtime.rank() == 0) {
        allocate = [&, allocate](const std::vector<std::int64_t>& rows) {
          has_begun.count_down();
          released.wait();
          return allocate(rows);
        };
      }
      const Tensor input(4);
      Handle handle = allgather_async(input.view(), allocate, {.name = "x", .process_set = &held});
      std::thread caller;
      if (is_driven_by_a_caller) caller = std::thread([&] { handle.wait(); });
      has_begun.wait();
      for (int round = 0; round < kRounds; ++round) {
        // Half of them without a caller that drives the other set either.
        Tensor tensor(5);
        tensor.fill([&](std::size_t i) { return input_value(runtime.rank(), i); });
        Handle free = allreduce_async(tensor.view(), tensor.view(),
                                      {.op = ReduceOp::Sum, .name = "y", .process_set = &other});
        while (round % 2 == 0 && !free.is_ready()) std::this_thread::sleep_for(10us);
        free.wait();
        tensor.expect([](std::size_t i) { return input_sum(3, i); }, "y");
      }
      expect_sum_works(runtime, "the world too");
      if (runtime.rank() == 0) {
        EXPECT_FALSE(handle.is_ready());
        released.count_down();
      }
      if (caller.joinable()) {
        caller.join();
      } else {
        handle.wait();
      }
      EXPECT_EQ(output.counts, (std::vector<std::int64_t>{4, 4, 4}));
    });
  }
}

TEST_P(IndependenceTest, ARankThatIsLateForOneSetHoldsNoOtherSet) {
  run_runtimes(GetParam(), [&](Runtime& runtime) {
    ProcessSet& late = runtime.add_process_set({1, 0});
    ProcessSet& other = runtime.add_process_set({1, 2});
    Tensor tensor(7);
    tensor.fill([&](std::size_t i) { return input_value(runtime.rank(), i); });
    const AllreduceOptions options{.op = ReduceOp::Sum, .name = "x", .process_set = &late};
    Handle handle;
    if (runtime.rank() == 0) handle = allreduce_async(tensor.view(), tensor.view(), options);
    for (int round = 0; round < kRounds && other.included(); ++round) expect_sum_works(other, "y");
    expect_sum_works(runtime, "the world too");
    if (runtime.rank() == 0) {
      EXPECT_FALSE(handle.is_ready());
    }
    barrier({.name = "looked"});
    if (runtime.rank() == 1) handle = allreduce_async(tensor.view(), tensor.view(), options);
    if (late.included()) {
      handle.wait();
      tensor.expect([](std::size_t i) { return input_sum(2, i); }, "x");
    }
  });
}

std::latch* reduction_has_begun = nullptr;
std::latch* reduction_is_released = nullptr;

/// The maximum of float32, held the first time.
void combine_slowly(DType, const void* next, void* accumulator, std::size_t count) {
  if (!reduction_has_begun->try_wait()) reduction_has_begun->count_down();
  reduction_is_released->wait();
  const auto* from = static_cast<const float*>(next);
  auto* to = static_cast<float*>(accumulator);
  for (std::size_t i = 0; i < count; ++i) to[i] = std::max(to[i], from[i]);
}
void fill_lowest(DType, void* values, std::size_t count) {
  std::fill_n(static_cast<float*>(values), count, std::numeric_limits<float>::lowest());
}

TEST_P(IndependenceTest, AReductionThatIsHeldHoldsNoOtherSet) {
  std::latch has_begun(1);
  std::latch released(1);
  reduction_has_begun = &has_begun;
  reduction_is_released = &released;
  run_ranks(2,
            [&](FakeWorld& world) {
              InitOptions options = options_in(world, GetParam().config);
              options.reductions = {{"slow", combine_slowly, fill_lowest}};
              options.process_sets = {{0, 1}};
              Runtime runtime(std::move(options));
              Runtime::set_thread_current(&runtime);
              ProcessSet& held = runtime.process_set(1);
              Tensor tensor(1);  // one element: one rank at most combines
              tensor.fill([&](std::size_t) { return 1.0 + runtime.rank(); });
              Handle handle = allreduce_async(
                  tensor.view(), tensor.view(),
                  {.op = ReduceOp::Custom, .custom = "slow", .name = "x", .process_set = &held});
              has_begun.wait();
              for (int round = 0; round < kRounds; ++round) expect_sum_works(runtime, "y");
              if (runtime.rank() == 0) released.count_down();
              handle.wait();
              tensor.expect([](std::size_t) { return 2; }, "x");
            },
            {.has_shared_memory = GetParam().name == "Shared"});
}

// --- mistakes ---

/// A call of every rank, of which that of `odd` differs.
void expect_all_fail(int size, const std::function<void(Runtime&, bool is_odd)>& call) {
  for (int odd = 0; odd < size; ++odd) {
    run_runtimes(size, [&](Runtime& runtime) {
      for (int time = 0; time < 3; ++time) {
        call(runtime, runtime.rank() == odd);
        ProcessSet& set = runtime.add_process_set({1, 0});
        EXPECT_EQ(set.number(), time + 1) << "a set that was refused took a number";
        if (set.included()) expect_sum_works(set, "x");
        expect_sum_works(runtime, "x");
      }
    });
  }
}

TEST(ProcessSetErrorsTest, AListThatCannotBeIsRefusedOnAllRanks) {
  const std::vector<std::pair<Ranks, std::string>> cases{
      {{}, "a process set needs at least one rank"},
      {{0, 3}, "there is no rank 3; ranks are 0 to 2"},
      {{-1, 0}, "there is no rank -1"},
      {{2, 0, 2}, "rank 2 is named twice"},
  };
  for (const auto& [ranks, why] : cases) {
    for (const bool is_everywhere : {false, true}) {
      expect_all_fail(3, [&](Runtime& runtime, bool is_odd) {
        const std::string text = text_thrown_by<InvalidArgument>(
            [&] { runtime.add_process_set(is_odd || is_everywhere ? ranks : Ranks{0, 2}); });
        expect_contains(text, "add_process_set");
        expect_contains(text, "on process set world: rank");
        expect_contains(text, why);
      });
    }
  }
}

TEST(ProcessSetErrorsTest, ListsThatDifferAreRefusedOnAllRanks) {
  expect_all_fail(3, [](Runtime& runtime, bool is_odd) {
    const std::string text = text_thrown_by<MismatchError>(
        [&] { runtime.add_process_set(is_odd ? Ranks{0, 1} : Ranks{2, 0}); });
    expect_contains(text, "list of ranks differs");
    expect_contains(text, "[0, 1] on rank");
    expect_contains(text, "[0, 2] on rank");
  });
}

TEST(ProcessSetErrorsTest, StartsThatDifferAreRefusedOnAllRanks) {
  run_ranks(3, [](FakeWorld& world) {
    const auto start = [&](std::vector<Ranks> sets) {
      InitOptions options = options_in(world, test_config());
      options.process_sets = std::move(sets);
      Runtime runtime(std::move(options));
    };
    const bool is_odd = world.topology().rank == 1;
    const std::string more = text_thrown_by<InvalidArgument>(
        [&] { start(is_odd ? std::vector<Ranks>{{0, 1}, {1, 2}} : std::vector<Ranks>{{1, 0}}); });
    expect_contains(more, "rank 0 has process sets {0, 1}, rank 1 has process sets {0, 1} {1, 2}");
    const std::string outside = text_thrown_by<InvalidArgument>([&] { start({{0, 1}, {2, 3}}); });
    expect_contains(outside, "there is no rank 3");
    start({{0, 1}});
  });
}

TEST(ProcessSetErrorsTest, OnlyMembersMayUseIt) {
  run_runtimes(3, [](Runtime& runtime) {
    ProcessSet& set = runtime.add_process_set({0, 2});
    EXPECT_EQ(set.name(), "{0, 2}");
    if (set.included()) {
      Tensor tensor(4);
      const std::string text = text_thrown_by<InvalidArgument>(
          [&] { broadcast(tensor.view(), 1, {.name = "x", .process_set = &set}); });
      // Found with the first of the two: it may name one rank only.
      expect_contains(text, "broadcast 'x' on process set {0, 2}: rank");
      expect_contains(text, "root rank 1 is not a member");
      expect_sum_works(set, "x");
      return;
    }
    Tensor tensor(4);
    Rows rows{DType::Float32, 1};
    const auto is_refused = [&](auto call) {
      expect_contains(text_thrown_by<InvalidArgument>(call),
                      "rank 1 is not a member of process set {0, 2}");
    };
    for (const std::string name : {"", "x"}) {
      is_refused(
          [&] { allreduce(tensor.view(), tensor.view(), {.name = name, .process_set = &set}); });
      is_refused([&] {
        reduce_scatter(tensor.view(), tensor.view(), {.name = name, .process_set = &set});
      });
      is_refused([&] { broadcast(tensor.view(), 0, {.name = name, .process_set = &set}); });
      is_refused(
          [&] { allgather(tensor.view(), rows.allocator(), {.name = name, .process_set = &set}); });
      is_refused([&] {
        alltoall(tensor.view(), {}, rows.allocator(), {.name = name, .process_set = &set});
      });
      is_refused([&] { barrier({.name = name, .process_set = &set}); });
      is_refused([&] { SharedBuffer(8, {.name = name, .process_set = &set}); });
    }
    is_refused([&] { join(&set); });
    is_refused([&] { set.metrics(); });
  });
}

TEST(ProcessSetErrorsTest, ARemovedOneIsGone) {
  run_runtimes(3, [](Runtime& runtime) {
    ProcessSet& set = runtime.add_process_set({0, 1});
    ProcessSet& twin = runtime.add_process_set({0, 1});
    runtime.remove_process_set(set);
    if (set.included()) {
      Tensor tensor(4);
      for (int time = 0; time < 2; ++time) {
        const std::string text = text_thrown_by<ShutdownError>(
            [&] { allreduce(tensor.view(), tensor.view(), {.name = "x", .process_set = &set}); });
        expect_contains(text, "allreduce 'x' on process set {0, 1}: it has been removed");
      }
      EXPECT_THROW(join(&set), ShutdownError);
      expect_sum_works(twin, "x");
    }
    const std::string again =
        text_thrown_by<InvalidArgument>([&] { runtime.remove_process_set(set); });
    expect_contains(again, "process set {0, 1} has been removed already");
    const std::string world =
        text_thrown_by<InvalidArgument>([&] { runtime.remove_process_set(runtime.world()); });
    expect_contains(world, "the world cannot be removed");
    for (const int number : {1, 3, -1}) {
      EXPECT_THROW(runtime.process_set(number), InvalidArgument);
    }
    EXPECT_EQ(&runtime.process_set(2), &twin);
    expect_sum_works(runtime, "x");
  });
}

TEST(ProcessSetErrorsTest, RemovalsThatDifferAreRefusedOnAllRanks) {
  for (int odd = 0; odd < 3; ++odd) {
    run_runtimes(3, [&](Runtime& runtime) {
      ProcessSet& first = runtime.add_process_set({0, 1});
      ProcessSet& twin = runtime.add_process_set({0, 1});
      ProcessSet& other = runtime.add_process_set({1, 2});
      const bool is_odd = runtime.rank() == odd;
      const std::string lists = text_thrown_by<MismatchError>(
          [&] { runtime.remove_process_set(is_odd ? other : first); });
      expect_contains(lists, "list of ranks differs");
      const std::string numbers =
          text_thrown_by<MismatchError>([&] { runtime.remove_process_set(is_odd ? twin : first); });
      expect_contains(numbers, "number of the process set differs");
      for (ProcessSet* set : {&first, &twin, &other}) {
        if (set->included()) expect_sum_works(*set, "x");
      }
    });
  }
}

TEST(ProcessSetErrorsTest, RemovalEndsWhatIsPendingThere) {
  run_runtimes(3, [](Runtime& runtime) {
    ProcessSet& set = runtime.add_process_set({0, 1, 2});
    Tensor tensor(4);
    Handle pending;
    if (runtime.rank() != 1) {
      pending = allreduce_async(tensor.view(), tensor.view(), {.name = "x", .process_set = &set});
    }
    runtime.remove_process_set(set);
    if (runtime.rank() != 1) {
      const std::string text = text_thrown_by<ShutdownError>([&] { pending.wait(); });
      expect_contains(text, "allreduce 'x' on process set {0, 1, 2}");
      expect_contains(text, "removed the set");
    }
    expect_sum_works(runtime, "x");
  });
}

TEST(ProcessSetThreadsTest, SetsAreAddedAndUsedByOtherThreads) {
  run_runtimes(3, [](Runtime& runtime) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&] {
        for (int round = 0; round < 5; ++round) {
          ProcessSet& set = runtime.add_process_set({2, 0});
          if (set.included()) expect_sum_works(set, "x");
        }
      });
    }
    for (int round = 0; round < 50; ++round) expect_sum_works(runtime, "x");
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(runtime.process_set(15).ranks(), (Ranks{0, 2}));
  });
}

}  // namespace kolo::test::process_set_test

// Process sets made at the start or later, overlapping, and used simultaneously.
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
#include "runtime/all_collectives.hpp"
#include "runtime/every_world.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"

namespace kolo::test::process_set_test {

using namespace std::chrono_literals;

using Ranks = std::vector<int>;

class ProcessSetTest : public EveryWorldTest {};

INSTANTIATE_TEST_SUITE_P(, ProcessSetTest, testing::ValuesIn(all_settings()), name_of_setting);

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

TEST_P(ProcessSetTest, AddedLater_RunEverything) {
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

TEST_P(ProcessSetTest, MadeAtTheStart_RunEverything) {
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

TEST_P(ProcessSetTest, OverlappingSets_WorkAtTheSameTime) {
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
        // A different order on every rank.
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
    barrier();  // a rank that ends early would end what sets without it have not launched
  });
}

TEST_P(ProcessSetTest, SetsAddedAndRemoved_LeaveTheOthersWorking) {
  run([&](Runtime& runtime) {
    for (int round = 1; round <= 10; ++round) {
      Ranks ranks{round % size()};
      if (size() > 1) ranks.push_back((round + 1) % size());
      ProcessSet& set = runtime.add_process_set(ranks);
      EXPECT_EQ(set.number(), round);  // numbers are not reused
      if (set.included()) expect_sum_works(set, "x");
      runtime.remove_process_set(set);
      expect_contains(text_thrown_by<InvalidArgument>([&] { runtime.process_set(round); }),
                      "no process set number " + std::to_string(round));
    }
    expect_sum_works(runtime, "x");
  });
}

TEST(ProcessSetThreadsTest, OtherThreads_MayAddAndUseSets) {
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

// Process sets that their members make by themselves, through a store.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <latch>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "runtime/all_collectives.hpp"
#include "runtime/deaths.hpp"
#include "runtime/every_world.hpp"
#include "runtime/values.hpp"
#include "support/memory_store.hpp"

namespace kolo::test::process_set_store_test {

using namespace std::chrono_literals;

using Ranks = std::vector<int>;

class ProcessSetStoreTest : public EveryWorldTest {
 protected:
  MemoryStore store_;
};

INSTANTIATE_TEST_SUITE_P(, ProcessSetStoreTest, testing::ValuesIn(all_settings()),
                         [](const auto& setting) {
                           return setting.param.name + "Np" + std::to_string(setting.param.size);
                         });

TEST_P(ProcessSetStoreTest, OtherRanksTakeNoPart) {
  run([&](Runtime& runtime) {
    const Ranks ranks = size() > 2 ? Ranks{size() - 1, 0} : runtime.world().ranks();
    if (std::ranges::find(ranks, runtime.rank()) == ranks.end()) return;  // and may even leave
    ProcessSet& set = runtime.add_process_set(ranks, store_);
    EXPECT_TRUE(std::ranges::is_sorted(set.ranks()));
    EXPECT_EQ(set.size(), static_cast<int>(ranks.size()));
    EXPECT_EQ(set.number(), -1);
    EXPECT_EQ(&runtime.process_set(-1), &set);
    const std::string first = set.next_name("x");
    EXPECT_EQ(first, "x.unnamed.0");
  });
}

// Each member has made a different number of sets before, some of them with all ranks.
TEST_P(ProcessSetStoreTest, OverlappingOnes_RunEverything) {
  run([&](Runtime& runtime) {
    const int rank = runtime.rank();
    std::vector<ProcessSet*> sets{&runtime.add_process_set(runtime.world().ranks())};
    for (int first = 0; first + 1 < size(); ++first) {
      if (rank != first && rank != first + 1) continue;
      sets.push_back(&runtime.add_process_set({first, first + 1}, store_));
      EXPECT_EQ(sets.back()->number(), -first - 1);  // rank `first` has made as many before
    }
    sets.push_back(&runtime.add_process_set(runtime.world().ranks(), store_));
    EXPECT_EQ(sets.back()->number(), -size());
    sets.push_back(&runtime.add_process_set(runtime.world().ranks()));
    EXPECT_EQ(sets.back()->number(), 2);
    for (int round = 0; round < 2; ++round) {
      for (ProcessSet* const set : sets) expect_all_work(*set);
    }
    expect_all_work(runtime.world());
  });
}

TEST_P(ProcessSetStoreTest, RemovedOnes_AreMadeAgain) {
  run([&](Runtime& runtime) {
    for (int round = 1; round <= 3; ++round) {
      ProcessSet& set = runtime.add_process_set(runtime.world().ranks(), store_);
      EXPECT_EQ(set.number(), -round);
      expect_sum_works(set, "x");
      runtime.remove_process_set(set);
      EXPECT_THROW(expect_sum_works(set, "y"), ShutdownError);
      EXPECT_THROW(runtime.remove_process_set(set), InvalidArgument);
      expect_contains(text_thrown_by<InvalidArgument>([&] { runtime.process_set(-round); }),
                      "no process set number");
    }
    expect_sum_works(runtime, "x");
  });
}

TEST(ProcessSetStoreRuntimesTest, WhatAnEarlierRuntimeHasSet_DoesNotCount) {
  MemoryStore store;
  for (int before = 0; before < 3; ++before) {
    run_runtimes(3, [&](Runtime& runtime) {
      const int rank = runtime.rank();
      for (int i = 0; rank == 0 && i < before; ++i) runtime.add_process_set({0}, store);
      ProcessSet& set = runtime.add_process_set({0, 1, 2}, store);
      EXPECT_EQ(set.number(), -before - 1);
      expect_sum_works(set, "x");
    });
  }
}

TEST(ProcessSetStoreErrorTest, WrongMembers_ThrowAtTheCall) {
  MemoryStore store;
  run_runtimes(3, [&](Runtime& runtime) {
    const auto text_of = [&](const Ranks& ranks) {
      return text_thrown_by<InvalidArgument>([&] { runtime.add_process_set(ranks, store); });
    };
    expect_contains(text_of({}), "at least one rank");
    expect_contains(text_of({runtime.rank(), 3}), "there is no rank 3; ranks are 0 to 2");
    expect_contains(text_of({runtime.rank(), -1}), "there is no rank -1");
    expect_contains(text_of({1, 2, 1, 0}), "rank 1 is named twice");
    const int other = (runtime.rank() + 1) % 3;
    expect_contains(text_of({other}), "rank " + std::to_string(runtime.rank()) + " is not among {" +
                                          std::to_string(other) + "}");
    expect_sum_works(runtime, "x");
  });
}

TEST(ProcessSetStoreErrorTest, DifferentMatching_IsAMismatchOnAllMembers) {
  MemoryStore store;
  run_runtimes(4, [&](Runtime& runtime) {
    if (runtime.rank() == 3) return;
    const Matching matching = runtime.rank() == 1 ? Matching::ByOrder : Matching::ByName;
    const std::string text =
        text_thrown_by<MismatchError>([&] { runtime.add_process_set({0, 1, 2}, store, matching); });
    expect_contains(text,
                    "rank 0 makes {0, 1, 2} matched by name, rank 1 {0, 1, 2} matched by order");
    // Nothing is left of it.
    expect_sum_works(runtime.add_process_set({0, 1, 2}, store, Matching::ByOrder), "x");
  });
}

TEST(ProcessSetStoreErrorTest, AMemberThatDoesNotCome_IsNamed) {
  for (const bool is_of_call : {false, true}) {
    MemoryStore store;
    Setting setting{.size = 3};
    setting.config.timeout = is_of_call ? 1h : 300ms;
    std::barrier all_are_done(setting.size);  // the error would name a rank that ends early
    run_runtimes(setting, [&](Runtime& runtime) {
      if (runtime.rank() == 2) return all_are_done.arrive_and_wait();
      const std::string text = text_thrown_by<TimeoutError>([&] {
        runtime.add_process_set({0, 1, 2}, store, Matching::ByName,
                                is_of_call ? std::optional(300ms) : std::nullopt);
      });
      expect_contains(text, "rank " + std::to_string(runtime.rank() == 0 ? 2 : 0) + " did not set");
      expect_contains(text, "{0, 1, 2}");
      all_are_done.arrive_and_wait();
    });
  }
}

TEST(ProcessSetStoreErrorTest, AMemberThatDies_IsALoss) {
  MemoryStore store;
  run_with_death(
      {.size = 3}, 1, [](Runtime& runtime) { expect_sum_works(runtime, "x"); },
      [&](FakeWorld&) {
        EXPECT_THROW(Runtime::current().add_process_set({0, 1, 2}, store), PeerLostError);
      });
}

TEST(ProcessSetStoreErrorTest, TwoThreadsThatRemoveASet_RemoveItOnce) {
  MemoryStore store;
  run_runtimes({.size = 2}, [&](Runtime& runtime) {
    for (const Matching matching : {Matching::ByName, Matching::ByOrder}) {
      for (int round = 0; round < 10; ++round) {
        ProcessSet& set = runtime.add_process_set({0, 1}, store, matching);
        std::atomic<int> removals = 0;
        const auto remove = [&] {
          try {
            runtime.remove_process_set(set);
            ++removals;
          } catch (const InvalidArgument& error) {
            expect_contains(error.what(), "has been removed already");
          }
        };
        std::thread other(remove);
        remove();
        other.join();
        EXPECT_EQ(removals, 1);
      }
    }
    expect_sum_works(runtime, "x");
  });
}

TEST(ProcessSetStoreErrorTest, AMemberThatShutsDown_IsNamed) {
  MemoryStore store;
  run_runtimes({.size = 3}, [&](Runtime& runtime) {
    if (runtime.rank() == 1) return;
    const std::string text =
        text_thrown_by<ShutdownError>([&] { runtime.add_process_set({0, 1, 2}, store); });
    expect_contains(text, "{0, 1, 2} through a Store: rank 1 shut Kolo down");
    ProcessSet& others = runtime.add_process_set({0, 2}, store);
    EXPECT_EQ(others.size(), 2);
  });
}

// Another rank has closed the world before, so its agreement is over.
TEST(ProcessSetStoreErrorTest, AMemberThatShutsDownLater_IsNamed) {
  MemoryStore store;
  Setting setting{.size = 3};
  setting.config.timeout = 10s;
  std::latch is_closed(1);
  run_runtimes(setting, [&](Runtime& runtime) {
    if (runtime.rank() == 2) {
      const CountDown done(is_closed);
      return runtime.shutdown();
    }
    is_closed.wait();
    if (runtime.rank() == 1) return;
    expect_contains(text_thrown_by<ShutdownError>([&] { runtime.add_process_set({0, 1}, store); }),
                    "{0, 1} through a Store: rank 1 shut Kolo down");
  });
}

TEST(ProcessSetStoreErrorTest, AThreadThatShutsDown_EndsTheWait) {
  /// Knows when someone waits.
  class WatchedStore final : public Store {
   public:
    void set(const std::string& key, const std::string& value) override { store_.set(key, value); }
    std::optional<std::string> get(const std::string& key,
                                   std::chrono::milliseconds timeout) override {
      is_asked.test_and_set();
      is_asked.notify_all();
      return store_.get(key, timeout);
    }
    std::atomic_flag is_asked;

   private:
    MemoryStore store_;
  };
  Setting setting{.size = 2};
  setting.config.timeout = 10s;
  std::latch is_shut_down(1);
  run_runtimes(setting, [&](Runtime& runtime) {
    if (runtime.rank() == 1) return is_shut_down.wait();
    WatchedStore store;
    std::thread other([&] {
      const CountDown done(is_shut_down);
      store.is_asked.wait(false);
      runtime.shutdown();
    });
    expect_contains(text_thrown_by<ShutdownError>([&] { runtime.add_process_set({0, 1}, store); }),
                    "rank 0 shut Kolo down before all members had called it");
    other.join();
  });
}

}  // namespace kolo::test::process_set_store_test

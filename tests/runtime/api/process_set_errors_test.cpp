// Errors when process sets are used incorrectly.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <latch>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "kolo/shared_buffer.hpp"
#include "runtime/deaths.hpp"
#include "runtime/every_world.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"
#include "support/fake_world/fault_world.hpp"

namespace kolo::test::process_set_errors_test {

using Ranks = std::vector<int>;

/// All ranks make a call, which differs on rank `odd`.
void expect_all_fail(int size, const std::function<void(Runtime&, bool is_odd)>& call) {
  for (int odd = 0; odd < size; ++odd) {
    run_runtimes(size, [&](Runtime& runtime) {
      for (int time = 0; time < 2; ++time) {
        call(runtime, runtime.rank() == odd);
        ProcessSet& set = runtime.add_process_set({1, 0});
        EXPECT_EQ(set.number(), time + 1) << "a set that was refused took a number";
        if (set.included()) expect_sum_works(set, "x");
        expect_sum_works(runtime, "x");
      }
    });
  }
}

TEST(ProcessSetErrorsTest, InvalidList_IsRejectedOnAllRanks) {
  const std::vector<std::pair<Ranks, std::string>> cases{
      {{}, "a process set needs at least one rank"},
      {{0, 3}, "there is no rank 3; ranks are 0 to 2"},
      {{-1, 0}, "there is no rank -1"},
      {{2, 0, 2}, "rank 2 is named twice"},
  };
  for (const auto& [ranks, why] : cases) {
    for (const bool is_everywhere : {false, true}) {
      expect_all_fail(3, [&, &ranks = ranks, &why = why](Runtime& runtime, bool is_odd) {
        const std::string text = text_thrown_by<InvalidArgument>(
            [&] { runtime.add_process_set(is_odd || is_everywhere ? ranks : Ranks{0, 2}); });
        expect_contains(text, "add_process_set");
        expect_contains(text, "on process set world: rank");
        expect_contains(text, why);
      });
    }
  }
}

TEST(ProcessSetErrorsTest, DifferentLists_AreRejectedOnAllRanks) {
  expect_all_fail(3, [](Runtime& runtime, bool is_odd) {
    const std::string text = text_thrown_by<MismatchError>(
        [&] { runtime.add_process_set(is_odd ? Ranks{0, 1} : Ranks{2, 0}); });
    expect_contains(text, "list of ranks differs");
    expect_contains(text, "[0, 1] on rank");
    expect_contains(text, "[0, 2] on rank");
  });
}

TEST(ProcessSetErrorsTest, DifferentStarts_AreRejectedOnAllRanks) {
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

TEST(ProcessSetErrorsTest, NonMember_MayNotUseTheSet) {
  run_runtimes(3, [](Runtime& runtime) {
    ProcessSet& set = runtime.add_process_set({0, 2});
    EXPECT_EQ(set.name(), "{0, 2}");
    if (set.included()) {
      Tensor tensor(4);
      const std::string text = text_thrown_by<InvalidArgument>(
          [&] { broadcast(tensor.view(), 1, {.name = "x", .process_set = &set}); });
      // Detected with the first of the two ranks, so the text may name only one.
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

TEST(ProcessSetErrorsTest, RemovedSet_CannotBeUsed) {
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

TEST(ProcessSetErrorsTest, DifferentRemovals_AreRejectedOnAllRanks) {
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

TEST(ProcessSetErrorsTest, Removal_EndsPendingWork) {
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

constexpr int kAddedSetControlChannel = 15;
/// Until then, the other ranks know that all have agreed on the set.
constexpr auto kTimeToAgree = std::chrono::seconds(1);

/// Ranks 0 and 1 make a set, while rank 2 of the same host dies.
TEST(ProcessSetLossTest, DeathOfARankThatIsNoMember_DoesNotKeepTheSetFromBeingMade) {
  std::atomic<bool> is_death_seen{false};
  run_ranks(3, [&](FakeWorld& world) {
    const int rank = world.topology().rank;
    std::vector<Fault> faults;
    if (rank == 1) {  // the others wait for it
      faults = {{.kind = Fault::Kind::Delay,
                 .channel = kAddedSetControlChannel,
                 .until = &is_death_seen}};
    }
    FaultWorld faulty(std::shared_ptr<FakeWorld>(std::shared_ptr<void>(), &world), faults);
    Runtime runtime(options_in(faulty, test_config()));
    std::jthread watcher([&] {
      if (rank != 0) return;
      while (world.dead_peers().empty()) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(50));  // rank 0 looks often meanwhile
      is_death_seen = true;
    });
    ProcessSet& set = runtime.add_process_set({0, 1});
    if (rank == 2) {
      std::this_thread::sleep_for(kTimeToAgree);
      world.die();
    }
    if (set.included()) expect_sum_works(set, "x");
  });
}

/// Rank 1 may have learned of the death before it began to make the set.
TEST(ProcessSetLossTest, DeathOfARank_EndsTheWaitForAMemberThatDoesNotCome) {
  std::latch members_know(2);
  run_ranks(3, [&](FakeWorld& world) {
    const int rank = world.topology().rank;
    std::vector<Fault> faults;
    if (rank == 1) faults = {{.kind = Fault::Kind::Drop, .channel = kAddedSetControlChannel}};
    FaultWorld faulty(std::shared_ptr<FakeWorld>(std::shared_ptr<void>(), &world), faults);
    Config config = test_config();
    config.lost_after = std::chrono::milliseconds(300);
    Runtime runtime(options_in(faulty, config));
    const auto add = [&] { runtime.add_process_set({0, 1}); };
    if (rank == 2) {
      add();
      std::this_thread::sleep_for(kTimeToAgree);
      world.die();
      members_know.wait();  // in shared memory even the dead rank could leave
      return;
    }
    const CountDown knows(members_know);
    expect_contains(text_thrown_by<PeerLostError>(add),
                    "process set {0, 1} was not made: a member does not come, after rank 2 died");
  });
}

/// The world knows that a member's host is lost, which its set has no means of knowing yet.
TEST(ProcessSetLossTest, LostHostOfAMember_EndsTheWaitForIt) {
  run_ranks(2,
            [&](FakeWorld& world) {
              std::vector<Fault> faults;
              if (world.topology().rank == 1) {
                faults = {{.kind = Fault::Kind::Die, .channel = kAddedSetControlChannel}};
              }
              FaultWorld faulty(std::shared_ptr<FakeWorld>(std::shared_ptr<void>(), &world),
                                faults);
              Config config = test_config();
              config.lost_after = std::chrono::seconds(1);
              Runtime runtime(options_in(faulty, config));
              const std::string text =
                  text_thrown_by<PeerLostError>([&] { runtime.add_process_set({0, 1}); });
              expect_contains(text, "process set {0, 1} was not made: rank");
              expect_contains(text, "cannot be reached");
            },
            {.nodes = 2});
}

}  // namespace kolo::test::process_set_errors_test

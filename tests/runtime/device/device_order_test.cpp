// The order in which overlapping process sets launch on GPUs.
#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "runtime/api/collectives.hpp"
#include "runtime/deaths.hpp"
#include "runtime/device/programs.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"
#include "support/memory_store.hpp"

namespace kolo::test::device_order_test {

using namespace std::chrono_literals;

/// A program on three ranks, where rank 1 learns rank 2's row counts only when `may_arrive` is set.
void gather_and_add_a_set(FakeWorld& world, std::atomic<bool>& may_arrive,
                          std::barrier<>& all_ranks) {
  constexpr int kWorldGpuChannel = 3;
  std::vector<Fault> faults;
  if (world.topology().rank == 2) {
    faults = {{.kind = Fault::Kind::Delay,
               .channel = kWorldGpuChannel,
               .destination = 1,
               .until = &may_arrive}};
  }
  FaultWorld with_faults(std::shared_ptr<FakeWorld>(std::shared_ptr<void>(), &world), faults);
  Config config = test_config();
  config.algorithm = "allgather:pairwise";  // each rank sends to each
  Runtime runtime(options_in(with_faults, config));
  Runtime::set_thread_current(&runtime);
  GpuProgram program(world);
  const auto memory = program.allocate(8);
  const auto rows = program.allocate(12);
  const TensorView view = program.view(memory, 8);
  program.write(memory, 8, 1.0F);
  allreduce(view, view, {.op = ReduceOp::Sum, .name = "first", .stream = program.stream()});
  all_ranks.arrive_and_wait();
  may_arrive = false;
  all_ranks.arrive_and_wait();
  Handle gathered = allgather_async(program.view(memory, 4),
                                    [&](const std::vector<std::int64_t>&) { return rows.get(); },
                                    {.name = "rows", .stream = program.stream()});
  std::thread late_sender;
  if (runtime.rank() == 2) {
    late_sender = std::thread([&] {
      std::this_thread::sleep_for(500ms);  // time for the set to overtake the rows, if it can
      may_arrive = true;
    });
  }
  barrier();  // so that the rows are agreed on before the set is
  ProcessSet& added = runtime.add_process_set({0, 1});
  if (added.included()) expect_sum_of_ones(program, added);
  gathered.wait();
  if (late_sender.joinable()) late_sender.join();
  EXPECT_EQ(program.read(rows, 12), std::vector<float>(12, 3.0F));
}

/// A rank is late to launch for the world, and launches for an added set meanwhile, as all do.
TEST(DeviceOrderTest, AddedSetAndWhatTheWorldHasNotLaunchedYetAreInOneOrder) {
  std::atomic<bool> may_arrive{true};
  std::barrier all_ranks(3);
  std::shared_ptr<FakeGpuHub> hub;
  run_ranks(3,
            [&](FakeWorld& world) {
              if (world.topology().rank == 0) hub = world.hub();
              gather_and_add_a_set(world, may_arrive, all_ranks);
            },
            {.gpus_per_rank = 1});
  for (const std::string& hazard : hub->hazards()) ADD_FAILURE() << hazard;
}

/// The program's thread knows that its work has ended; Kolo's thread, which launches, does not.
TEST(DeviceOrderTest, WaitsOfTheProgramDoNotReplaceEvents) {
  std::barrier has_waited(2);
  run_programs(setting_with_gpus(2), [&](Runtime& runtime, FakeWorld& world) {
    const int rank = runtime.rank();
    GpuProgram program(world);
    const auto memory = program.allocate(8);
    const TensorView view = program.view(memory, 8);
    program.write(memory, 8, 1.0F);
    if (rank == 1) has_waited.arrive_and_wait();
    Handle handle =
        allreduce_async(view, view, {.op = ReduceOp::Sum, .name = "x", .stream = program.stream()});
    program.synchronize();
    if (rank == 0) has_waited.arrive_and_wait();
    while (world.hub()->launches(rank) == 0) std::this_thread::yield();
    handle.wait();
    EXPECT_EQ(program.read(memory, 8), std::vector<float>(8, 2.0F));
  });
}

/// Whether a gather on rank 0 runs only after what its program has launched since it was submitted.
bool gather_waits_for_later_work(bool has_known_rows) {
  std::barrier launched(2);
  std::shared_ptr<FakeGpuHub> hub;
  run_ranks(2,
            [&](FakeWorld& world) {
              const int rank = world.topology().rank;
              if (rank == 0) hub = world.hub();
              Runtime runtime(options_in(world, test_config()));
              Runtime::set_thread_current(&runtime);
              GpuProgram program(world), observer(world);
              const auto memory = program.allocate(4);
              const auto gathered = program.allocate(8);
              const auto later = program.allocate(4);
              program.write(memory, 4, 1.0F);
              expect_sum_of_ones(program, runtime.world());
              if (rank == 1) launched.arrive_and_wait();
              const OperationOptions options{.name = "gather", .stream = program.stream()};
              const TensorView view = program.view(memory, 4);
              Handle handle =
                  has_known_rows
                      ? submit(runtime::make_allgather({{view, gathered.get()}}, {4, 4},
                                                       runtime::Outputs::PerRank, options))
                      : allgather_async(view, [&](const auto&) { return gathered.get(); }, options);
              if (rank == 0) {
                program.write(later, 4, 2.0F);
                launched.arrive_and_wait();
              }
              handle.wait();
              expect_sum_of_ones(observer,
                                 runtime.world());     // behind the gather, and what it knows
              if (rank == 0) observer.read(later, 4);  // a hazard unless it knows of that
              EXPECT_EQ(program.read(gathered, 8), std::vector<float>(8, 1.0F));
            },
            {.gpus_per_rank = 1});
  return hub->hazards().empty();
}

/// A unit that is gathered ahead must not wait for the kernels of the one that is in use.
TEST(DeviceOrderTest, GatherOfKnownRowsDoesNotWaitForLaterWork) {
  EXPECT_TRUE(gather_waits_for_later_work(false));  // it waits for the memory that is allocated
  EXPECT_FALSE(gather_waits_for_later_work(true));
}

/// Sets of two out of three ranks, in a circle, and two of all; each rank submits in its own order.
TEST(DeviceOrderTest, SetsMatchedByNameAgree) {
  for (const bool is_own : {false, true}) {
    MemoryStore store;
    run_runtimes(
        {.size = 3, .network = {.longest_delay = 200us, .gpus_per_rank = 1}},
        [&](Runtime& runtime) {
          const int rank = runtime.rank();
          std::vector<ProcessSet*> sets{&runtime.world()};
          for (const std::vector<int>& ranks :
               std::vector<std::vector<int>>{{0, 1}, {1, 2}, {2, 0}, {0, 1, 2}}) {
            const bool is_member = std::ranges::find(ranks, rank) != ranks.end();
            if (is_own && !is_member) continue;
            ProcessSet& set =
                is_own ? runtime.add_process_set(ranks, store) : runtime.add_process_set(ranks);
            if (is_member) sets.push_back(&set);
          }
          std::ranges::rotate(sets, sets.begin() + rank);
          std::vector<Tensor> tensors;
          while (tensors.size() < sets.size()) tensors.emplace_back(5);
          for (int round = 0; round < 30; ++round) {
            std::vector<Handle> handles;
            for (std::size_t i = 0; i < sets.size(); ++i) {
              const TensorView view = tensors[i].view();
              handles.push_back(allreduce_async(view, view, {.name = "x", .process_set = sets[i]}));
            }
            for (Handle& handle : handles) handle.wait();
          }
        });
  }
}

/// Submits to `sets[0]`, then to `sets[1]`. On rank 1 the thread that makes progress in the first
/// one is in a function of the program meanwhile.
void sum_in_order(Runtime& runtime, FakeGpuHub& hub, const std::array<ProcessSet*, 2>& sets) {
  const int rank = runtime.rank();
  for (ProcessSet* const set : sets) expect_sum_works(*set, "connects");
  std::latch is_held(1), released(1);
  float row = 1.0F;
  std::array<float, 2> rows{};
  const AllocateRows allocate = [&](const std::vector<std::int64_t>&) -> void* {
    is_held.count_down();
    if (rank == 1) released.wait();
    return rows.data();
  };
  Handle held = allgather_async({&row, DType::Float32, {1}, {}}, allocate,
                                {.name = "held", .process_set = sets[0]});
  is_held.wait();
  const int launches = hub.launches(rank);
  std::array<Tensor, 2> tensors{Tensor(5), Tensor(5)};
  std::vector<Handle> sums;
  for (std::size_t i = 0; i < 2; ++i) {
    const TensorView view = tensors.at(i).view();
    sums.push_back(allreduce_async(view, view, {.name = "x", .process_set = sets.at(i)}));
    if (rank == 0) sums.back().wait();
  }
  const auto limit = std::chrono::steady_clock::now() + 200ms;  // for the second to overtake
  while (rank == 1 && hub.launches(rank) == launches && std::chrono::steady_clock::now() < limit) {
    std::this_thread::yield();
  }
  released.count_down();
  held.wait();
  for (Handle& sum : sums) sum.wait();
}

/// As groups of c10d are; see LaunchQueue.
TEST(DeviceOrderTest, SetsMatchedByOrderLaunchInTheOrderOfSubmission) {
  MemoryStore store;
  std::shared_ptr<FakeGpuHub> hub;
  run_ranks(2,
            [&](FakeWorld& world) {
              if (world.topology().rank == 0) hub = world.hub();
              FakeTensorPlace place(world.hub(), world.topology().rank,
                                    world.topology().local_rank);
              tensor_place = &place;
              {
                Runtime runtime(options_in(world, test_config()));
                Runtime::set_thread_current(&runtime);
                std::array<ProcessSet*, 2> sets{};
                for (ProcessSet*& set : sets) {
                  set = &runtime.add_process_set({0, 1}, store, Matching::ByOrder);
                }
                sum_in_order(runtime, *world.hub(), sets);
              }
              tensor_place = nullptr;
            },
            {.gpus_per_rank = 1});
  for (const std::string& hazard : hub->hazards()) ADD_FAILURE() << hazard;
}

/// Rank 1 is late for the operation by name, which both have submitted first.
TEST(DeviceOrderTest, WhatIsByNameIsLaunchedBeforeWhatIsSubmittedByOrder) {
  MemoryStore store;
  run_programs(setting_with_gpus(2), [&](Runtime& runtime, FakeWorld& world) {
    ProcessSet& by_order = runtime.add_process_set({0, 1}, store, Matching::ByOrder);
    GpuProgram program(world);
    const auto one = program.allocate(8), other = program.allocate(8);
    const auto reduce = [&](const auto& memory, const char* name, ProcessSet& set) {
      const TensorView view = program.view(memory, 8);
      return allreduce_async(view, view,
                             {.name = name, .process_set = &set, .stream = program.stream()});
    };
    std::vector<std::string> order;
    for (int round = 0; round < 10; ++round) {
      if (runtime.rank() == 1) std::this_thread::sleep_for(1ms);
      Handle by_name = reduce(one, "by name", runtime.world());
      reduce(other, "by order", by_order).wait();
      by_name.wait();
      order.insert(order.end(), {"by name", "by order"});
    }
    program.synchronize();
    EXPECT_EQ(world.hub()->marks(runtime.rank()), order);
  });
}

TEST(DeviceOrderTest, WhatIsSubmittedByOrderNamesWhatItWaitsFor) {
  MemoryStore store;
  std::latch has_thrown(1);
  run_runtimes({.size = 2, .network = {.gpus_per_rank = 1}}, [&](Runtime& runtime) {
    ProcessSet& by_order = runtime.add_process_set({0, 1}, store, Matching::ByOrder);
    Tensor one(5), other(5);
    if (runtime.rank() == 1) has_thrown.wait();
    Handle by_name = allreduce_async(one.view(), one.view(), {.name = "x"});
    if (runtime.rank() == 0) {
      const CountDown throws(has_thrown);
      expect_contains(text_thrown_by<TimeoutError>([&] {
                        allreduce(other.view(), other.view(),
                                  {.name = "y", .timeout = 50ms, .process_set = &by_order});
                      }),
                      "operations by name that this rank submitted before have not started");
    }
    by_name.wait();
  });
}

/// Rank 1 is busy when it should run the first set's operation. Rank 0 has launched it, and the
/// other set's operation, which needs no rank 1, must not wait for its end.
TEST(DeviceOrderTest, ABatchWaitsForTheStartOfTheOneBeforeNotForItsEnd) {
  const auto may_end = std::make_shared<std::atomic<bool>>(false);
  run_programs(setting_with_gpus(3), [&](Runtime& runtime, FakeWorld& world) {
    ProcessSet& busy = runtime.add_process_set({0, 1});
    ProcessSet& other = runtime.add_process_set({0, 2});
    GpuProgram one(world), two(world);
    const auto memory = one.allocate(8), more = two.allocate(8);
    one.write(memory, 8, 1.0F);
    two.write(more, 8, 1.0F);
    const auto reduce = [](GpuProgram& program, const auto& place, ProcessSet& set) {
      if (!set.included()) return;
      const TensorView view = program.view(place, 8);
      allreduce(
          view, view,
          {.op = ReduceOp::Sum, .name = "x", .process_set = &set, .stream = program.stream()});
    };
    if (runtime.rank() == 1) world.hub()->hold(1, one.stream(), may_end);
    reduce(one, memory, busy);
    reduce(two, more, other);
    EXPECT_EQ(two.read(more, 8), std::vector<float>(8, other.included() ? 2.0F : 1.0F));
    barrier();
    *may_end = true;
    EXPECT_EQ(one.read(memory, 8), std::vector<float>(8, busy.included() ? 2.0F : 1.0F));
  });
}

TEST(DeviceOrderTest, SetsWithoutRankZeroGoOnOnceItHasShutDown) {
  std::latch is_over(1);
  run_runtimes({.size = 3, .network = {.nodes = 2, .longest_delay = 200us, .gpus_per_rank = 1}},
               [&](Runtime& runtime) {
                 ProcessSet& set = runtime.add_process_set({1, 2});
                 expect_sum_works(runtime, "world");
                 if (!set.included()) {
                   runtime.shutdown();
                   return is_over.count_down();
                 }
                 expect_sum_works(set, "x");
                 is_over.wait();
                 for (int round = 0; round < 10; ++round) expect_sum_works(set, "x");
               });
}

/// The loss of a set, or of the world, is not one of other sets.
TEST(DeviceOrderTest, LostSetHoldsUpNoOther) {
  for (const bool is_world : {false, true}) {
    std::latch other_has_ended(2);
    run_ranks(4,
              [&](FakeWorld& world) {
                const int rank = world.topology().rank;
                FakeTensorPlace place(world.hub(), rank, world.topology().local_rank);
                tensor_place = &place;
                if (rank == 0) world.hub()->fail_collective(0, 1, "an illegal address was met");
                {
                  Runtime runtime(options_in(world, test_config()));
                  Runtime::set_thread_current(&runtime);
                  ProcessSet& added = runtime.add_process_set({0, 1, 3});
                  ProcessSet& other = runtime.add_process_set({1, 2});
                  ProcessSet& lost = is_world ? runtime.world() : added;
                  if (lost.included()) {
                    Tensor tensor(5);
                    expect_contains(text_thrown_by<PeerLostError>([&] {
                                      while (true) {
                                        allreduce(tensor.view(), tensor.view(),
                                                  {.name = "x", .process_set = &lost});
                                      }
                                    }),
                                    "illegal address");
                  }
                  for (int i = 0; i < 10 && other.included(); ++i) expect_sum_works(other, "y");
                  if (other.included()) other_has_ended.count_down();
                  other_has_ended.wait();
                }
                tensor_place = nullptr;
              },
              {.gpus_per_rank = 1});
  }
}

}  // namespace kolo::test::device_order_test

// The order in which overlapping process sets launch on GPUs, and what follows when rank 0, which
// decides on it, has ended.
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

/// The world's launches without a number precede the first added set on all ranks.
TEST(DeviceOrderTest, AddedSetComesBehindWhatTheWorldHasNotLaunchedYet) {
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

/// Sums in `set` until that fails with an `Expected`. @return how often it worked
template <class Expected>
int sum_until_thrown(ProcessSet& set, const std::string& text) {
  Tensor tensor(5);
  for (int done = 0;; ++done) {
    try {
      allreduce(tensor.view(), tensor.view(), {.name = "x", .process_set = &set});
    } catch (const Expected& error) {
      expect_contains(error.what(), text);
      return done;
    }
  }
}

const std::string kRankZeroHasLeft = "rank 0 of the world has shut Kolo down";

/// World rank 0 orders the launches of overlapping sets.
TEST(DeviceOrderTest, SetsWithoutRankZeroFailOnTheirGpusOnceItHasShutDown) {
  for (const bool rendezvous : {false, true}) {
    const Setting setting{
        .size = 3,
        .network = {
            .nodes = 2, .longest_delay = 200us, .rendezvous = rendezvous, .gpus_per_rank = 1}};
    std::vector<int> sums(3);
    run_runtimes(setting, [&](Runtime& runtime) {
      ProcessSet& set = runtime.add_process_set({1, 2});
      if (!set.included()) return;
      sums.at(static_cast<std::size_t>(runtime.rank())) =
          sum_until_thrown<ShutdownError>(set, kRankZeroHasLeft);
      float one = 1.0F;
      const TensorView on_cpu{&one, DType::Float32, {1}, {}};
      allreduce(on_cpu, on_cpu, {.op = ReduceOp::Sum, .name = "y", .process_set = &set});
      EXPECT_EQ(one, 2.0F);
    });
    EXPECT_EQ(sums[1], sums[2]);
  }
}

/// The loss of a set is not known outside it.
TEST(DeviceOrderTest, LostSetHoldsUpNeitherOtherSetsNorTheShutdown) {
  for (const std::vector<int>& lost_ranks : {std::vector<int>{0, 3}, {1, 2}}) {
    Config config = test_config();
    config.timeout = config.lost_after =
        24h;  // who waits for a rank runs into the limit of the test
    run_ranks(4,
              [&](FakeWorld& world) {
                FakeTensorPlace place(world.hub(), world.topology().rank,
                                      world.topology().local_rank);
                tensor_place = &place;
                const int victim = lost_ranks.back();
                if (world.topology().rank == victim) {
                  world.hub()->fail_collective(victim, 1, "an illegal address was met");
                }
                {
                  Runtime runtime(options_in(world, config));
                  Runtime::set_thread_current(&runtime);
                  ProcessSet& lost = runtime.add_process_set(lost_ranks);
                  ProcessSet& other = runtime.add_process_set({1, 2});
                  if (lost.included()) sum_until_thrown<PeerLostError>(lost, "illegal address");
                  // Launches end with rank 0, which stays until the set is lost on all ranks.
                  Handle is_lost = barrier_async({.name = "lost"});
                  if (!other.included()) is_lost.wait();
                  if (other.included()) sum_until_thrown<ShutdownError>(other, kRankZeroHasLeft);
                }
                tensor_place = nullptr;
              },
              {.gpus_per_rank = 1});
  }
}

/// World rank 0 dies and orders launches no more.
TEST(DeviceOrderTest, SetsFailOnTheirGpusOnceTheWorldHasLostARank) {
  std::barrier all_have_the_set(3);
  std::latch survivors_know(2);
  run_ranks(3,
            [&](FakeWorld& world) {
              const int rank = world.topology().rank;
              FakeTensorPlace place(world.hub(), rank, world.topology().local_rank);
              tensor_place = &place;
              Config config = test_config();
              config.lost_after = 60s;
              {
                Runtime runtime(options_in(world, config));
                Runtime::set_thread_current(&runtime);
                ProcessSet& set = runtime.add_process_set({1, 2});
                all_have_the_set.arrive_and_wait();
                if (rank == 0) {
                  world.die();
                  survivors_know.wait();
                } else {
                  const CountDown knows(survivors_know);
                  // Rank 1 asks for the set's turns and so knows which rank is lost.
                  const std::string which = rank == 1 ? " (rank 0 " : "";
                  sum_until_thrown<PeerLostError>(set, "the world has lost a rank" + which);
                  float one = 1.0F;
                  const TensorView on_cpu{&one, DType::Float32, {1}, {}};
                  allreduce(on_cpu, on_cpu,
                            {.op = ReduceOp::Sum, .name = "y", .process_set = &set});
                  EXPECT_EQ(one, 2.0F);
                }
              }
              tensor_place = nullptr;
            },
            {.gpus_per_rank = 1});
}

}  // namespace kolo::test::device_order_test

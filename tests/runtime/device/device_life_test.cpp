// The GPU resources of process sets, when they are released, and what must not block operations:
// graphs that the program captures, and event queries and aborts that hang.
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "runtime/device/programs.hpp"
#include "runtime/runtimes.hpp"

namespace kolo::test::device_life_test {

using namespace std::chrono_literals;

class DeviceLifeTest : public testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(, DeviceLifeTest, testing::Values(1, 2, 3, 4));

TEST_P(DeviceLifeTest, RemovedSetGivesBackWhatTheGpuLent) {
  run_programs(setting_with_gpus(size()), [&](Runtime& runtime, FakeWorld& world) {
    GpuProgram program(world);
    const auto memory = program.allocate(8);
    const TensorView view = program.view(memory, 8);
    const auto reduce = [&](ProcessSet& set) {
      program.write(memory, 8, 1.0F);
      Handle handle = allreduce_async(view, view,
                                      {.op = ReduceOp::Sum,
                                       .compression = Compression::fp16(),
                                       .name = "x",
                                       .process_set = &set,
                                       .stream = program.stream()});
      handle.wait();
      EXPECT_EQ(program.read(memory, 8), std::vector<float>(8, static_cast<float>(size())));
      return handle;
    };
    Handle first = reduce(runtime.world());
    const FakeGpuHub::Resources before = world.hub()->resources(runtime.rank());
    for (int round = 0; round < 3; ++round) {
      ProcessSet& added = runtime.add_process_set(everybody(size()));
      Handle kept = reduce(added);
      EXPECT_NE(world.hub()->resources(runtime.rank()), before);
      runtime.remove_process_set(added);
      EXPECT_EQ(world.hub()->resources(runtime.rank()), before);
      kept.wait();  // a handle outlives its set
      EXPECT_GT(added.metrics().bytes_packed, 0U);
    }
    first = reduce(runtime.world());
  });
}

/// Freeing memory may wait for the GPU.
TEST_P(DeviceLifeTest, JoinedRankUsesItsMemoryAgain) {
  constexpr int kSteps = 30;
  run_programs(setting_with_gpus(size()), [&](Runtime& runtime, FakeWorld& world) {
    GpuProgram program(world);
    const auto memory = program.allocate(1000);
    const TensorView view = program.view(memory, 1000);
    const int before = world.hub()->allocations(runtime.rank());
    const bool works = runtime.rank() < size() - 1;
    for (int step = 0; works && step < kSteps; ++step) {
      program.write(memory, 1000, 1.0F);
      allreduce(view, view, {.op = ReduceOp::Sum, .name = "x", .stream = program.stream()});
      EXPECT_EQ(program.read(memory, 1000),
                std::vector<float>(1000, static_cast<float>(size() - 1)));
      std::this_thread::sleep_for(1ms);
    }
    join();
    EXPECT_LT(world.hub()->allocations(runtime.rank()) - before, kSteps);
  });
}

TEST_P(DeviceLifeTest, GraphThatIsCapturedHasNoPartInCollectives) {
  run_programs(setting_with_gpus(size()), [&](Runtime& runtime, FakeWorld& world) {
    GpuProgram program(world);
    const auto memory = program.allocate(8);
    const TensorView view = program.view(memory, 8);
    const AllreduceOptions options{.op = ReduceOp::Sum, .name = "x", .stream = program.stream()};
    FakeGpuHub& hub = *world.hub();
    program.write(memory, 8, 1.0F);
    Handle handle = allreduce_async(view, view, options);
    while (!handle.is_ready()) std::this_thread::sleep_for(1ms);
    // On the last rank only; all ranks get the error.
    const bool captures = runtime.rank() == size() - 1;
    if (captures) {
      hub.begin_capture(runtime.rank(), program.stream());
      expect_contains(text_thrown_by<InvalidArgument>([&] { handle.wait(); }), "Wait before");
    }
    AllreduceOptions refused = options;
    refused.name = "refused";
    expect_contains(text_thrown_by<InvalidArgument>([&] { allreduce(view, view, refused); }),
                    "captured into a CUDA graph");
    if (captures) hub.end_capture(runtime.rank(), program.stream());
    handle.wait();
    EXPECT_EQ(program.read(memory, 8), std::vector<float>(8, static_cast<float>(size())));
  });
}

/// Kolo learns of the capture when it allocates the output, and the set goes on.
TEST_P(DeviceLifeTest, GraphThatIsCapturedSinceTheCallFailsOnAllRanks) {
  if (size() == 1) GTEST_SKIP() << "one rank does not wait for others between call and capture";
  const int last = size() - 1;
  run_programs(setting_with_gpus(size()), [&](Runtime& runtime, FakeWorld& world) {
    GpuProgram program(world);
    FakeGpuHub& hub = *world.hub();
    const auto ranks = static_cast<std::size_t>(size());
    const auto memory = program.allocate(ranks);
    const auto result = program.allocate(ranks * ranks);
    program.write(memory, ranks, 1.0F);
    const auto allocate = [&](const std::vector<std::int64_t>&) { return result.get(); };
    const OperationOptions options{.name = "x", .stream = program.stream()};
    for (const Collective collective : {Collective::AllGather, Collective::AllToAll}) {
      if (runtime.rank() != last) barrier();
      const TensorView view = program.view(memory, ranks);
      Handle handle = collective == Collective::AllGather
                          ? allgather_async(view, allocate, options)
                          : alltoall_async(view, {}, allocate, options);
      if (runtime.rank() == last) {
        hub.begin_capture(last, program.stream());
        barrier();
      }
      expect_contains(text_thrown_by<InvalidArgument>([&] { handle.wait(); }),
                      "its stream on rank " + std::to_string(last) +
                          " is being captured into a CUDA graph since it was called");
      if (runtime.rank() == last) hub.end_capture(last, program.stream());
      expect_sum_of_ones(program, runtime.world());
    }
  });
}

/// Freeing memory waits for the GPU, and a rank that stalls before its launch holds up others.
TEST_P(DeviceLifeTest, LaunchFreesNoMemory) {
  run_programs(setting_with_gpus(size()), [&](Runtime& runtime, FakeWorld& world) {
    GpuProgram program(world), busy(world);
    Tensors few(program, {64, 192}), more(program, {640, 1920});
    few.write(1.0F);
    more.write(1.0F);
    ProcessSet& added = runtime.add_process_set(everybody(size()));
    const AllreduceOptions options{
        .op = ReduceOp::Sum, .name = "x", .process_set = &added, .stream = program.stream()};
    grouped_allreduce(few.in_place(), options);
    few.expect_all(0, static_cast<float>(size()));
    const auto may_end = std::make_shared<std::atomic<bool>>(false);
    world.hub()->hold(runtime.rank(), busy.stream(), may_end);
    grouped_allreduce(more.in_place(), options);  // outgrows the staging memory
    *may_end = true;
    more.expect_all(0, static_cast<float>(size()));
    more.expect_all(1, static_cast<float>(2 * size()));
  });
}

/// As when the program waits for its GPU inside CUDA, which then blocks other queries.
TEST_P(DeviceLifeTest, UnansweredEventQueryBlocksNobody) {
  run_programs(setting_with_gpus(size()), [&](Runtime& runtime, FakeWorld& world) {
    GpuProgram program(world);
    ProcessSet& added = runtime.add_process_set(everybody(size()));
    FakeGpuHub& hub = *world.hub();
    if (runtime.rank() == 0) hub.block_queries(0);
    for (int step = 0; step < 20; ++step) {
      expect_sum_of_ones(program, step % 2 == 0 ? added : runtime.world());
    }
    if (runtime.rank() == 0) {
      EXPECT_TRUE(hub.is_blocked(0));
      hub.unblock(0);
    }
  });
}

/// NCCL's abort may wait for a peer, or for a GPU that hangs.
TEST(DeviceFailureTest, HangingAbortBlocksNobody) {
  Config config = test_config();
  config.timeout = 1s;
  config.lost_after = 200ms;
  std::shared_ptr<FakeGpuHub> hub;
  run_ranks(3,
            [&](FakeWorld& world) {
              const int rank = world.topology().rank;
              GpuProgram program(world);
              world.hub()->block_aborts(rank);
              if (rank == 1) world.hub()->lose_collective(1, 0);
              const auto memory = program.allocate(8);
              const TensorView view = program.view(memory, 8);
              {
                Runtime runtime(options_in(world, config));
                Runtime::set_thread_current(&runtime);
                allreduce(view, view, {.name = "bad", .stream = program.stream()});
                std::this_thread::sleep_for(2s);
                expect_contains(text_thrown_by<PeerLostError>([&] {
                                  allreduce(view, view,
                                            {.name = "next", .stream = program.stream()});
                                }),
                                "has not ended");
              }
              EXPECT_TRUE(world.hub()->is_blocked(rank)) << "somebody waited for the abort";
              world.hub()->unblock(rank);
            },
            {.gpus_per_rank = 1});
}

}  // namespace kolo::test::device_life_test

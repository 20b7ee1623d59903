// Errors of collectives on GPUs: wrong devices, GPUs shared by ranks without permission, GPUs that
// fail or hang.
#include <barrier>
#include <chrono>
#include <cstddef>
#include <functional>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "comm/gpu/gpu.hpp"
#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "runtime/deaths.hpp"
#include "runtime/device/programs.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"

namespace kolo::test::device_errors_test {

using namespace std::chrono_literals;

/// The text of the error with which an all-reduce of `view` fails on all ranks.
template <class Expected>
std::string refused(const TensorView& input, const TensorView& output,
                    AllreduceOptions options = {}) {
  options.name = "x";
  return text_thrown_by<Expected>([&] { allreduce(input, output, options); });
}

class DeviceErrorsTest : public testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(, DeviceErrorsTest, testing::Values(1, 2, 3, 4));

TEST_P(DeviceErrorsTest, WrongDevicesAreErrorsOnAllRanks) {
  run_programs(setting_with_gpus(size()), [&](Runtime& runtime, FakeWorld& world) {
    GpuProgram program(world);
    const auto memory = program.allocate(8);
    const TensorView right = program.view(memory, 8);
    TensorView elsewhere = right;
    elsewhere.device.index = (right.device.index + 1) % size();
    const Tensor on_cpu(8);
    allreduce(right, right, {.op = ReduceOp::Max, .name = "first", .stream = program.stream()});
    if (size() > 1) {
      const bool is_wrong = runtime.rank() == size() - 1;
      expect_contains(
          refused<InvalidArgument>(is_wrong ? elsewhere : right, is_wrong ? elsewhere : right),
          "A rank has one GPU");
      expect_contains(refused<MismatchError>(is_wrong ? on_cpu.view() : right,
                                             is_wrong ? on_cpu.view() : right),
                      "device");
    }
    expect_contains(refused<InvalidArgument>(right, on_cpu.view()),
                    "the input and the output are on different devices");
    program.write(memory, 8, 1.0F);
    allreduce(right, right, {.op = ReduceOp::Sum, .name = "x", .stream = program.stream()});
    EXPECT_EQ(program.read(memory, 8), std::vector<float>(8, static_cast<float>(size())));
  });
}

/// Also if the last rank alone asks for it.
TEST_P(DeviceErrorsTest, WhatIsForCpuMemoryIsAnErrorOnAllRanks) {
  run_programs(setting_with_gpus(size()), [&](Runtime& runtime, FakeWorld& world) {
    GpuProgram program(world);
    const auto memory = program.allocate(8);
    const TensorView floats = program.view(memory, 8);
    TensorView integers = floats;
    integers.dtype = DType::Int32;
    const bool is_last = runtime.rank() == size() - 1;
    const std::string codec = "compression \"int8\" is for tensors in CPU memory. Use none, fp16";
    const AllreduceOptions coded{.compression = Compression::int8()};
    for (const bool may_ask : {true, is_last}) {
      const auto expect_refused = [&](const TensorView& view, const AllreduceOptions& options,
                                      const std::string& part) {
        const std::string text =
            refused<InvalidArgument>(view, view, may_ask ? options : AllreduceOptions{});
        expect_contains(text, "allreduce 'x'");
        expect_contains(text, part);
      };
      expect_refused(floats, {.op = ReduceOp::Custom, .custom = "any"}, "runs on CPU memory only");
      expect_refused(integers, {.op = ReduceOp::BitXor}, "BitXor of int32 runs on CPU memory only");
      expect_refused(floats, {.op = ReduceOp::Adasum}, "Adasum of float32 runs on CPU memory only");
      expect_refused(floats, coded, codec);
    }
    expect_contains(text_thrown_by<InvalidArgument>([&] {
                      grouped_allreduce({{integers, integers}, {floats, floats}}, coded);
                    }),
                    codec);
    expect_sum_of_ones(program, runtime.world());
  });
}

/// Tensors are packed in memory that LibTorch may have taken: all ranks get the error, and go on.
TEST_P(DeviceErrorsTest, FullGpuOfOneRankIsAnErrorOnAll) {
  run_programs(setting_with_gpus(size()), [&](Runtime& runtime, FakeWorld& world) {
    GpuProgram program(world);
    Tensors tensors(program, {64, 192});
    const auto sum = [&] {
      tensors.write(1.0F);
      grouped_allreduce(tensors.in_place(),
                        {.op = ReduceOp::Sum, .name = "x", .stream = program.stream()});
    };
    expect_sum_of_ones(program, runtime.world());
    const int full = size() - 1;
    FakeGpuHub& hub = *world.hub();
    if (runtime.rank() == full) hub.set_capacity(full, hub.resources(full).bytes + 1023);
    const std::string text = text_thrown_by<BackendError>(sum);
    expect_contains(text,
                    "the GPU of rank " + std::to_string(full) + " has no room for 1024 bytes");
    if (runtime.rank() == full) expect_contains(text, "it is full");
    if (runtime.rank() == full) hub.set_capacity(full, hub.resources(full).bytes + 1024);
    sum();
    tensors.expect_all(0, static_cast<float>(size()));
    tensors.expect_all(1, static_cast<float>(2 * size()));
  });
}

/// A larger block than needed is only asked for where there is room for it.
TEST_P(DeviceErrorsTest, StagingMemoryTakesWhatIsLeft) {
  run_programs(setting_with_gpus(size()), [&](Runtime& runtime, FakeWorld& world) {
    GpuProgram program(world);
    Tensors few(program, {64, 192}), more(program, {64, 256});
    few.write(1.0F);
    more.write(1.0F);
    FakeGpuHub& hub = *world.hub();
    const AllreduceOptions options{.op = ReduceOp::Sum, .name = "x", .stream = program.stream()};
    grouped_allreduce(few.in_place(), options);
    const int rank = runtime.rank();
    // 1280 are needed, 1536 asked for first.
    hub.set_capacity(rank, hub.resources(rank).bytes + (rank == size() - 1 ? 1280 : 1600));
    grouped_allreduce(more.in_place(), options);
    more.expect_all(0, static_cast<float>(size()));
    more.expect_all(1, static_cast<float>(2 * size()));
  });
}

/// There is room for the whole group before any of it is launched, and failures do not add up.
TEST_P(DeviceErrorsTest, GroupWithoutRoomLaunchesNothing) {
  Setting setting = setting_with_gpus(size());
  setting.config.algorithm = "allreduce:direct";
  setting.config.fusion = false;
  run_programs(setting, [&](Runtime& runtime, FakeWorld& world) {
    GpuProgram program(world);
    Tensors same(program, {512, 512}), growing(program, {512, 100'000});
    const int rank = runtime.rank();
    const auto own = static_cast<float>(rank + 1);
    same.write(own);
    growing.write(own);
    const AllreduceOptions options{.op = ReduceOp::Sum, .name = "x", .stream = program.stream()};
    grouped_allreduce(same.in_place(), options);
    FakeGpuHub& hub = *world.hub();
    if (rank == 0) hub.set_capacity(rank, hub.resources(rank).bytes);
    const int launches = hub.launches(rank);
    EXPECT_THROW(grouped_allreduce(growing.in_place(), options), BackendError);
    const std::size_t bytes = hub.resources(rank).bytes;
    EXPECT_THROW(grouped_allreduce(growing.in_place(), options), BackendError);
    EXPECT_EQ(hub.resources(rank).bytes, bytes);
    EXPECT_EQ(hub.launches(rank), launches);
    growing.expect_all(0, own);
    growing.expect_all(1, own + 1);
    if (rank == 0) hub.set_capacity(rank, std::size_t{1} << 30);
    grouped_allreduce(growing.in_place(), options);
    const int sum = size() * (size() + 1) / 2;
    growing.expect_all(0, static_cast<float>(sum));
    growing.expect_all(1, static_cast<float>(sum + size()));
  });
}

std::function<void()> releases_cached;

TEST(DeviceMemoryTest, WhatAnotherAllocatorCachesIsReleasedBeforeAGpuCountsAsFull) {
  comm::set_release_of_cached_memory([] {
    if (releases_cached) releases_cached();
  });
  run_programs(setting_with_gpus(1), [&](Runtime& runtime, FakeWorld& world) {
    GpuProgram program(world);
    Tensors tensors(program, {64, 192});
    tensors.write(1.0F);
    expect_sum_of_ones(program, runtime.world());
    FakeGpuHub& hub = *world.hub();
    hub.set_capacity(0, hub.resources(0).bytes);
    releases_cached = [&] { hub.set_capacity(0, std::size_t{1} << 20); };
    grouped_allreduce(tensors.in_place(),
                      {.op = ReduceOp::Sum, .name = "x", .stream = program.stream()});
    releases_cached = nullptr;
    tensors.expect_all(0, 1.0F);
    tensors.expect_all(1, 2.0F);
  });
  comm::set_release_of_cached_memory(nullptr);
}

TEST_P(DeviceErrorsTest, MisalignedTensorOfOneRankIsAnErrorOnAll) {
  run_programs(setting_with_gpus(size()), [&](Runtime& runtime, FakeWorld& world) {
    GpuProgram program(world);
    const auto memory = program.allocate(8);
    TensorView view = program.view(memory, 7);
    if (runtime.rank() == size() - 1) view.data = static_cast<std::byte*>(view.data) + 2;
    expect_contains(refused<InvalidArgument>(view, view),
                    "does not begin at a multiple of its element's 4 bytes");
  });
}

TEST_P(DeviceErrorsTest, WithoutGpusTheErrorSaysHowToBuildForThem) {
  run_programs({.size = size()}, [&](Runtime&, FakeWorld&) {
    Tensor tensor(8);
    TensorView view = tensor.view();
    view.device = {DeviceKind::Cuda, 0};
    expect_contains(refused<InvalidArgument>(view, view), "KOLO_WITH_CUDA=ON");
  });
}

TEST(SharedGpuTest, NeedsToBeAskedFor) {
  for (const bool may_share : {false, true}) {
    Setting setting = setting_with_gpus(3);
    setting.network.is_one_gpu = true;
    setting.config.share_gpu = may_share;
    run_programs(setting, [&](Runtime& runtime, FakeWorld& world) {
      GpuProgram program(world);
      const auto memory = program.allocate(8);
      const TensorView view = program.view(memory, 8);
      program.write(memory, 8, 1.0F);
      if (may_share) {
        allreduce(view, view, {.op = ReduceOp::Sum, .name = "x", .stream = program.stream()});
        EXPECT_EQ(program.read(memory, 8), std::vector<float>(8, 3.0F));
      } else {
        const std::string text = refused<InvalidArgument>(view, view);
        expect_contains(text, "ranks 0 and 1 use the same GPU");
        expect_contains(text, "KOLO_SHARE_GPU=on");
        expect_sum_works(runtime, "on the CPU");
        program.synchronize();
      }
    });
  }
}

TEST(DeviceFailureTest, WhatFailsOnTheGpuEndsTheSetOnAllRanks) {
  for (const int victim : {0, 2}) {
    run_ranks(3,
              [&](FakeWorld& world) {
                GpuProgram program(world);
                if (world.topology().rank == victim) {
                  world.hub()->fail_collective(victim, 1, "an illegal address was met");
                }
                Runtime runtime(options_in(world, test_config()));
                Runtime::set_thread_current(&runtime);
                const auto memory = program.allocate(8);
                const TensorView view = program.view(memory, 8);
                const auto reduce = [&](const std::string& name) {
                  allreduce(view, view, {.name = name, .stream = program.stream()});
                };
                reduce("good");
                std::string text;
                for (int step = 0; step < 1000 && text.empty(); ++step) {
                  try {
                    reduce("bad");
                    std::this_thread::sleep_for(1ms);
                  } catch (const PeerLostError& error) {
                    text = error.what();
                  }
                }
                expect_contains(text, "rank " + std::to_string(victim));
                expect_contains(text, "an illegal address was met");
              },
              {.gpus_per_rank = 1, .late_launches = true});
  }
}

constexpr const char* kIllegal = "an illegal memory access was encountered";

/// A kernel of the program fails, and with it every later call on the GPU.
void break_gpu(FakeWorld& world, GpuProgram& program) {
  world.hub()->kernel(world.topology().rank, program.stream(),
                      {.name = "kernel", .error = kIllegal});
}

TEST(DeviceFailureTest, BrokenGpuEndsTheSetOnAllRanks) {
  for (const int victim : {0, 2}) {
    for (const bool is_known : {false, true}) {  // to the program, before it calls Kolo
      run_ranks(
          3,
          [&](FakeWorld& world) {
            GpuProgram program(world);
            const auto memory = program.allocate(8);
            const TensorView view = program.view(memory, 8);
            Runtime runtime(options_in(world, test_config()));
            Runtime::set_thread_current(&runtime);
            const auto reduce = [&](const std::string& name) {
              allreduce(view, view, {.name = name, .stream = program.stream()});
            };
            EXPECT_EQ(runtime.world().metrics().gpu_seconds, 0.0);  // from now on it is timed
            reduce("good");
            // So that Kolo asks the GPU nothing until the next call.
            while (runtime.world().metrics().gpu_seconds == 0.0) std::this_thread::yield();
            if (runtime.rank() == victim) break_gpu(world, program);
            if (runtime.rank() == victim && is_known) {
              EXPECT_THROW(program.synchronize(), BackendError);
            }
            const auto reduce_until_lost = [&] {
              while (true) {
                try {
                  reduce("bad");
                } catch (const BackendError&) {  // after the launch, from the program's stream
                  EXPECT_EQ(runtime.rank(), victim);
                }
              }
            };
            expect_contains(text_thrown_by<PeerLostError>(reduce_until_lost),
                            "rank " + std::to_string(victim) + " failed");
            const std::string text = text_thrown_by<PeerLostError>([&] { reduce("next"); });
            expect_contains(text, "'next'");
            expect_contains(text, kIllegal);
          },
          {.gpus_per_rank = 1, .late_launches = true});
    }
  }
}

TEST(DeviceFailureTest, RuntimeEndsOnABrokenGpu) {
  run_programs(setting_with_gpus(3), [](Runtime& runtime, FakeWorld& world) {
    GpuProgram program(world);
    expect_sum_of_ones(program, runtime.world());
    if (runtime.rank() != 1) return;
    break_gpu(world, program);
    EXPECT_THROW(program.synchronize(), BackendError);
  });
}

TEST_P(DeviceErrorsTest, GpuThatIsBrokenAtTheStartIsAnErrorOnAllRanks) {
  run_ranks(size(),
            [&](FakeWorld& world) {
              GpuProgram program(world);
              const auto memory = program.allocate(8);
              const TensorView view = program.view(memory, 8);
              if (world.topology().rank == size() - 1) {
                break_gpu(world, program);
                EXPECT_THROW(program.synchronize(), BackendError);
              }
              Runtime runtime(options_in(world, test_config()));
              Runtime::set_thread_current(&runtime);
              for (int step = 0; step < 2; ++step) {
                const std::string text = refused<InvalidArgument>(view, view);
                expect_contains(text, "rank " + std::to_string(size() - 1));
                expect_contains(text, kIllegal);
              }
              expect_sum_works(runtime, "on the CPU");
            },
            {.gpus_per_rank = 1});
}

/// NCCL notices the end of a peer before Kolo does.
TEST(DeviceFailureTest, RankThatIsCutOffWaitsForTheNewsWhichRankIsLost) {
  for (const bool is_lost : {true, false}) {
    std::latch survivors_know(is_lost ? 2 : 3);
    Config config = test_config();
    config.lost_after = is_lost ? 60s : 300ms;
    run_ranks(3,
              [&](FakeWorld& world) {
                GpuProgram program(world);
                const int rank = world.topology().rank;
                const std::string text = "remote error: a peer has closed its connection";
                if (rank == 0) world.hub()->fail_collective(0, 0, text);
                Runtime runtime(options_in(world, config));
                Runtime::set_thread_current(&runtime);
                const auto memory = program.allocate(8);
                const TensorView view = program.view(memory, 8);
                allreduce(view, view, {.stream = program.stream()});
                if (is_lost && rank == 2) {
                  std::this_thread::sleep_for(200ms);
                  world.die();
                  return survivors_know.wait();
                }
                const CountDown knows(survivors_know);
                expect_contains(text_thrown_by<PeerLostError>([&] {
                                  while (true) barrier();
                                }),
                                is_lost ? "rank 2 died" : "rank 0 failed: " + text);
              },
              {.gpus_per_rank = 1});
  }
}

/// NCCL's abort ends it in the middle, so what is there may be wrong.
TEST(DeviceFailureTest, WaitForWhatWasLaunchedBeforeALossThrows) {
  std::barrier is_launched(3);
  std::latch survivors_know(2);
  Config config = test_config();
  config.lost_after = 300ms;
  run_ranks(3,
            [&](FakeWorld& world) {
              GpuProgram program(world);
              Runtime runtime(options_in(world, config));
              Runtime::set_thread_current(&runtime);
              const auto memory = program.allocate(8);
              const TensorView view = program.view(memory, 8);
              Handle handle = allreduce_async(view, view, {.stream = program.stream()});
              while (!handle.is_ready()) std::this_thread::yield();
              is_launched.arrive_and_wait();
              if (runtime.rank() == 2) {
                world.die();
                return survivors_know.wait();
              }
              const CountDown knows(survivors_know);
              text_thrown_by<PeerLostError>([] {
                while (true) barrier();
              });
              expect_contains(text_thrown_by<PeerLostError>([&] { handle.wait(); }), "rank 2");
            },
            {.gpus_per_rank = 1});
}

TEST(DeviceFailureTest, WhatNeverEndsOnTheGpuEndsTheSetOnAllRanks) {
  Config config = test_config();
  config.timeout = 1s;
  config.lost_after = 200ms;
  run_ranks(3,
            [&](FakeWorld& world) {
              GpuProgram program(world);
              if (world.topology().rank == 1) world.hub()->lose_collective(1, 1);
              Runtime runtime(options_in(world, config));
              Runtime::set_thread_current(&runtime);
              const auto memory = program.allocate(8);
              const TensorView view = program.view(memory, 8);
              allreduce(view, view, {.name = "good", .stream = program.stream()});
              // Launched on all ranks, so there is no error yet.
              allreduce(view, view, {.name = "bad", .stream = program.stream()});
              std::this_thread::sleep_for(2s);
              const std::string text = text_thrown_by<PeerLostError>(
                  [&] { allreduce(view, view, {.name = "next", .stream = program.stream()}); });
              expect_contains(text, "'next'");
              expect_contains(text, "allreduce 'bad' was launched on the GPU and has not ended");
            },
            {.gpus_per_rank = 1, .late_launches = true});
}

}  // namespace kolo::test::device_errors_test

// Guarantees of collectives on GPUs beyond those on the CPU: stream order, and memory kept while it
// is used. Runs on the fake GPUs, which report missing synchronization.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "ops/kernels/pieces.hpp"
#include "runtime/device/device_backend.hpp"
#include "runtime/device/programs.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"

namespace kolo::test::device_test {

using namespace std::chrono_literals;

class DeviceTest : public testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }
  float sum_of_ranks(float factor) const {
    return factor * static_cast<float>(size() * (size() + 1)) / 2.0F;
  }
};
INSTANTIATE_TEST_SUITE_P(, DeviceTest, testing::Values(1, 2, 3, 4));

TEST_P(DeviceTest, ComesBetweenProducerAndConsumerOnTheProgramsStream) {
  run_programs(setting_with_gpus(size()), [&](Runtime& runtime, FakeWorld& world) {
    GpuProgram program(world);
    const auto memory = program.allocate(1000);
    const float own = static_cast<float>(runtime.rank() + 1);
    for (int step = 1; step <= 5; ++step) {
      const auto view = program.view(memory, 1000);
      program.write(memory, 1000, own * static_cast<float>(step));
      allreduce_async(view, view, {.op = ReduceOp::Sum, .name = "x", .stream = program.stream()})
          .wait();
      EXPECT_EQ(program.read(memory, 1000),
                std::vector<float>(1000, sum_of_ranks(static_cast<float>(step))));
    }
  });
}

/// NCCL only adds: Kolo's kernels apply factors, one for an all-reduce, whose input stays as it is.
TEST_P(DeviceTest, FactorsScaleEveryElementOfALargeTensor) {
  run_programs(setting_with_gpus(size()), [&](Runtime& runtime, FakeWorld& world) {
    constexpr std::size_t kCount = 100'003;
    GpuProgram program(world);
    const auto input = program.allocate(kCount);
    const auto output = program.allocate(kCount);
    const auto from = program.view(input, kCount);
    const auto to = program.view(output, kCount);
    const std::vector<float> own(kCount, static_cast<float>(runtime.rank() + 1));
    const auto kernels_of = [&](const auto& collective) {
      program.write(input, own);
      program.write(output, kCount, -1.0F);
      const auto kernels = [&] {
        return program_place == nullptr ? world.hub()->calls(runtime.rank()).kernels : 0;
      };
      const int before = kernels();
      collective();
      return kernels() - before;
    };
    const int one = program_place == nullptr ? 1 : 0;  // only fake GPUs count
    const AllreduceOptions half{
        .op = ReduceOp::Sum, .prescale = 2.0, .postscale = 0.25, .stream = program.stream()};
    const std::vector<float> expected(kCount, sum_of_ranks(0.5F));
    EXPECT_EQ(kernels_of([&] { allreduce(from, to, half); }), one);
    EXPECT_EQ(program.read(output, kCount), expected);
    EXPECT_EQ(program.read(input, kCount), own);
    EXPECT_EQ(kernels_of([&] { allreduce(from, from, half); }), one);
    EXPECT_EQ(program.read(input, kCount), expected);

    const ops::Range piece = ops::piece_of(kCount, size(), runtime.rank());
    const auto part = program.view(output, piece.length);
    for (const bool is_before : {false, true}) {
      AllreduceOptions options{.op = ReduceOp::Sum, .stream = program.stream()};
      (is_before ? options.prescale : options.postscale) = 0.5;
      // One for its part of the sum, or two that stage all elements.
      EXPECT_EQ(kernels_of([&] { reduce_scatter(from, part, options); }),
                is_before ? 2 * one : one);
      EXPECT_EQ(program.read(output, piece.length),
                std::vector<float>(piece.length, sum_of_ranks(0.5F)));
      EXPECT_EQ(program.read(input, kCount), own);
    }
  });
}

/// A sum of float16 overflows where the average does not.
TEST(DevicePlanTest, HalvesAreScaledBeforeTheyAreAdded) {
  for (const Collective collective : {Collective::AllReduce, Collective::ReduceScatter}) {
    runtime::Request request;
    request.collective = collective;
    request.op = ReduceOp::Average;
    for (const DType dtype : {DType::Float16, DType::BFloat16, DType::Float32, DType::Float64}) {
      const runtime::DevicePlan plan =
          runtime::plan_on_device(request, {.dtype = dtype, .payload = dtype, .size = 4});
      const bool is_before = collective == Collective::AllReduce || dtype == DType::Float16;
      EXPECT_EQ(plan.before, is_before ? 0.25 : 1.0) << name_of(dtype);
      EXPECT_EQ(plan.after, is_before ? 1.0 : 0.25) << name_of(dtype);
      EXPECT_EQ(plan.is_staged, is_before && collective == Collective::ReduceScatter)
          << name_of(dtype);
    }
  }
}

TEST_P(DeviceTest, BatchesAreMarkedForProfilersAndTimed) {
  KOLO_SKIP_ON_OTHER_GPUS();
  run_programs(setting_with_gpus(size()), [&](Runtime& runtime, FakeWorld& world) {
    GpuProgram program(world);
    const auto memory = program.allocate(16);
    const auto view = program.view(memory, 16);
    program.write(memory, 16, 1.0F);
    EXPECT_EQ(runtime.world().metrics().gpu_seconds, 0.0);
    for (const char* name : {"first", "second"}) {
      allreduce(view, view, {.op = ReduceOp::Sum, .name = name, .stream = program.stream()});
    }
    program.synchronize();
    const auto until = std::chrono::steady_clock::now() + 30s;
    // The runtime checks periodically. Each batch takes at least a millisecond on the fake GPU.
    while (runtime.world().metrics().gpu_seconds < 2e-3) {
      ASSERT_LT(std::chrono::steady_clock::now(), until);
      std::this_thread::sleep_for(1ms);
    }
    EXPECT_EQ(world.hub()->marks(runtime.rank()), (std::vector<std::string>{"first", "second"}));
    while (world.hub()->live_marks() > 0) {
      ASSERT_LT(std::chrono::steady_clock::now(), until);
      std::this_thread::sleep_for(1ms);
    }
  });
}

TEST_P(DeviceTest, KeepsMemoryUntilTheGpuHasFinishedWithIt) {
  run_programs(setting_with_gpus(size()), [&](Runtime& runtime, FakeWorld& world) {
    GpuProgram program(world);
    const auto result = program.allocate(64);
    for (int step = 0; step < 20; ++step) {
      // Only the operation owns the input.
      auto input = program.allocate(64);
      program.write(input, 64, static_cast<float>(runtime.rank() + step));
      const TensorView from = program.view(input, 64);
      allreduce_async(from, program.view(result, 64),
                      {.op = ReduceOp::Max,
                       .name = "x",
                       .keep_alive = std::move(input),
                       .stream = program.stream()})
          .wait();
    }
    EXPECT_EQ(program.read(result, 64),
              std::vector<float>(64, static_cast<float>(size() - 1 + 19)));
  });
}

TEST_P(DeviceTest, StagesMoreAndMoreWhileTheGpuIsBehind) {
  run_programs(setting_with_gpus(size()), [&](Runtime& runtime, FakeWorld& world) {
    GpuProgram program(world);
    const float own = static_cast<float>(runtime.rank() + 1);
    std::vector<std::pair<std::size_t, std::shared_ptr<std::byte>>> results;
    for (std::size_t floats = 100; floats < 20000; floats += floats / 3) {
      const auto one = program.allocate(floats);
      const auto other = program.allocate(floats);
      program.write(one, floats, own);
      program.write(other, floats, own);
      const TensorView views[] = {program.view(one, floats), program.view(other, floats)};
      grouped_allreduce(
          {{views[0], views[0]}, {views[1], views[1]}},
          {.op = ReduceOp::Sum, .compression = Compression::fp16(), .stream = program.stream()});
      results.insert(results.end(), {{floats, one}, {floats, other}});
    }
    for (const auto& [floats, memory] : results) {
      EXPECT_EQ(program.read(memory, floats), std::vector<float>(floats, sum_of_ranks(1.0F)));
    }
  });
}

TEST_P(DeviceTest, DoesNotWaitForTheCpu) {
  if (size() == 1) GTEST_SKIP() << "one rank sends no messages that could be held back";
  Setting setting = setting_with_gpus(size());
  setting.network.nodes = size();
  std::atomic<bool> cpu_may_continue{false};
  std::latch gpus_are_done(size());
  const auto body = [&](Runtime& runtime, FakeWorld& world) {
    GpuProgram program(world);
    const auto memory = program.allocate(8);
    const auto view = program.view(memory, 8);
    program.write(memory, 8, static_cast<float>(runtime.rank() + 1));
    Tensor large(1 << 12);
    large.fill([&](std::size_t i) { return input_value(runtime.rank(), i); });
    Handle on_cpu =
        allreduce_async(large.view(), large.view(), {.op = ReduceOp::Sum, .name = "on the CPU"});
    Handle on_gpu = allreduce_async(
        view, view, {.op = ReduceOp::Sum, .name = "on the GPU", .stream = program.stream()});
    on_gpu.wait();
    EXPECT_EQ(program.read(memory, 8), std::vector<float>(8, sum_of_ranks(1.0F)));
    EXPECT_FALSE(on_cpu.is_ready());
    gpus_are_done.arrive_and_wait();
    cpu_may_continue = true;
    on_cpu.wait();
    large.expect([&](std::size_t i) { return input_sum(size(), i); }, "on the CPU");
  };
  constexpr int kWorldDataChannel = 0;
  run_programs(
      setting, body,
      {{.kind = Fault::Kind::Delay, .channel = kWorldDataChannel, .until = &cpu_may_continue}});
}

TEST_P(DeviceTest, GatheredRowsGoToMemoryThatTheProgramWasStillUsing) {
  run_programs(setting_with_gpus(size()), [&](Runtime& runtime, FakeWorld& world) {
    GpuProgram program(world);
    const auto input = program.allocate(4);
    const auto output = program.allocate(4 * static_cast<std::size_t>(size()));
    program.write(input, 4, static_cast<float>(runtime.rank()));
    allgather(program.view(input, 4),
              [&](const std::vector<std::int64_t>&) {
                // Like a stream-ordered allocator, which reuses memory before its last use has
                // completed.
                program.write(output, 4 * static_cast<std::size_t>(size()), -1.0F);
                return output.get();
              },
              {.stream = program.stream()});
    std::vector<float> expected;
    for (int rank = 0; rank < size(); ++rank) {
      expected.insert(expected.end(), 4, static_cast<float>(rank));
    }
    EXPECT_EQ(program.read(output, expected.size()), expected);
  });
}

}  // namespace kolo::test::device_test

// What collectives on GPUs promise beyond those on the CPU: order by streams, memory kept as long
// as it is used, and errors. On the double, which finds what nobody waits for.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"
#include "support/fake_world/fault_world.hpp"

namespace kolo::test::device_test {

using namespace std::chrono_literals;

/// One rank: a stream of its program's, and floats on its GPU.
class Program {
 public:
  explicit Program(FakeWorld& world)
      : hub_(world.hub()),
        rank_(world.topology().rank),
        gpu_(world.topology().local_rank),
        stream_(hub_->make_stream(rank_)) {}

  CUstream_st* stream() const { return stream_.get(); }
  std::shared_ptr<std::byte> allocate(std::size_t floats) {
    return hub_->allocate(rank_, floats * sizeof(float));
  }
  TensorView view(const std::shared_ptr<std::byte>& memory, std::size_t floats) const {
    return {memory.get(),
            DType::Float32,
            {static_cast<std::int64_t>(floats)},
            Device{DeviceKind::Cuda, gpu_}};
  }
  /// A kernel on the program's stream that sets all elements.
  void write(const std::shared_ptr<std::byte>& memory, std::size_t floats, float value) {
    float* const data = reinterpret_cast<float*>(memory.get());
    hub_->kernel(rank_, stream(),
                 {.name = "producer",
                  .writes = {ByteRange(memory.get(), floats * sizeof(float))},
                  .run = [=] { std::fill_n(data, floats, value); }});
  }
  /// Those that a kernel on the program's stream finds there.
  std::vector<float> read(const std::shared_ptr<std::byte>& memory, std::size_t floats) {
    std::vector<float> values(floats);
    const std::byte* const data = memory.get();
    hub_->kernel(rank_, stream(),
                 {.name = "consumer",
                  .reads = {ByteRange(data, floats * sizeof(float))},
                  .run = [&values, data] {
                    std::memcpy(values.data(), data, values.size() * sizeof(float));
                  }});
    hub_->synchronize(rank_, stream());
    return values;
  }
  void synchronize() { hub_->synchronize(rank_, stream()); }

 private:
  std::shared_ptr<FakeGpuHub> hub_;
  int rank_;
  int gpu_;
  std::shared_ptr<CUstream_st> stream_;
};

Setting setting_of(int size) {
  return {.size = size, .network = {.gpus_per_rank = 1, .late_launches = true}};
}

/// Runs `body` on every rank, without a hazard, in a world with these faults.
void run_programs(const Setting& setting, const std::function<void(Runtime&, FakeWorld&)>& body,
                  const std::vector<Fault>& faults = {}) {
  std::shared_ptr<FakeGpuHub> hub;
  run_ranks(
      setting.size,
      [&](FakeWorld& world) {
        if (world.topology().rank == 0) hub = world.hub();
        FaultWorld with_faults(std::shared_ptr<FakeWorld>(std::shared_ptr<void>(), &world), faults);
        Runtime runtime(options_in(with_faults, setting.config));
        Runtime::set_thread_current(&runtime);
        body(runtime, world);
      },
      setting.network);
  if (hub == nullptr) return;
  for (const std::string& hazard : hub->hazards()) ADD_FAILURE() << hazard;
}

class DeviceTest : public testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }
  float sum_of_ranks(float factor) const {
    return factor * static_cast<float>(size() * (size() + 1)) / 2.0F;
  }
};
INSTANTIATE_TEST_SUITE_P(, DeviceTest, testing::Values(1, 2, 3, 4));

TEST_P(DeviceTest, ComesBetweenProducerAndConsumerOnTheProgramsStream) {
  run_programs(setting_of(size()), [&](Runtime& runtime, FakeWorld& world) {
    Program program(world);
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

TEST_P(DeviceTest, BatchesAreMarkedForProfilersAndTimed) {
  run_programs(setting_of(size()), [&](Runtime& runtime, FakeWorld& world) {
    Program program(world);
    const auto memory = program.allocate(16);
    const auto view = program.view(memory, 16);
    program.write(memory, 16, 1.0F);
    EXPECT_EQ(runtime.world().metrics().gpu_seconds, 0.0);
    for (const char* name : {"first", "second"}) {
      allreduce(view, view, {.op = ReduceOp::Sum, .name = name, .stream = program.stream()});
    }
    program.synchronize();
    const auto until = std::chrono::steady_clock::now() + 30s;
    // The runtime looks from time to time. Each batch takes the double a millisecond at least.
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

TEST_P(DeviceTest, KeepsMemoryUntilTheGpuIsThroughWithIt) {
  run_programs(setting_of(size()), [&](Runtime& runtime, FakeWorld& world) {
    Program program(world);
    const auto result = program.allocate(64);
    for (int step = 0; step < 20; ++step) {
      // Nobody else keeps the input.
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
  run_programs(setting_of(size()), [&](Runtime& runtime, FakeWorld& world) {
    Program program(world);
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
  Setting setting = setting_of(size());
  setting.network.nodes = size();
  std::atomic<bool> cpu_may_go_on{false};
  std::latch gpus_are_done(size());
  const auto body = [&](Runtime& runtime, FakeWorld& world) {
    Program program(world);
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
    cpu_may_go_on = true;
    on_cpu.wait();
    large.expect([&](std::size_t i) { return input_sum(size(), i); }, "on the CPU");
  };
  constexpr int kDataOfTheWorld = 0;
  run_programs(setting, body,
               {{.kind = Fault::Kind::Delay, .channel = kDataOfTheWorld, .until = &cpu_may_go_on}});
}

TEST_P(DeviceTest, GatheredRowsGoToMemoryThatTheProgramWasStillUsing) {
  run_programs(setting_of(size()), [&](Runtime& runtime, FakeWorld& world) {
    Program program(world);
    const auto input = program.allocate(4);
    const auto output = program.allocate(4 * static_cast<std::size_t>(size()));
    program.write(input, 4, static_cast<float>(runtime.rank()));
    allgather(program.view(input, 4),
              [&](const std::vector<std::int64_t>&) {
                // As an allocator that orders memory by streams: its last use is not over.
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

/// The text of the error that an all-reduce of `view` ends in, on all ranks.
template <class Expected>
std::string refused(const TensorView& input, const TensorView& output,
                    AllreduceOptions options = {}) {
  options.name = "x";
  return text_thrown_by<Expected>([&] { allreduce(input, output, options); });
}

TEST_P(DeviceTest, WrongDevicesAreErrorsOnAllRanks) {
  run_programs(setting_of(size()), [&](Runtime& runtime, FakeWorld& world) {
    Program program(world);
    const auto memory = program.allocate(8);
    const TensorView right = program.view(memory, 8);
    TensorView elsewhere = right;
    elsewhere.device.index = (right.device.index + 1) % size();
    const Tensor on_cpu(8);
    allreduce(right, right, {.op = ReduceOp::Max, .name = "first"});
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
    expect_contains(
        refused<InvalidArgument>(right, right, {.op = ReduceOp::Custom, .custom = "any"}),
        "runs on CPU memory only");
    program.write(memory, 8, 1.0F);
    allreduce(right, right, {.op = ReduceOp::Sum, .name = "x", .stream = program.stream()});
    EXPECT_EQ(program.read(memory, 8), std::vector<float>(8, static_cast<float>(size())));
  });
}

TEST_P(DeviceTest, WithoutGpusTheErrorSaysHowToBuildForThem) {
  run_programs({.size = size()}, [&](Runtime&, FakeWorld&) {
    Tensor tensor(8);
    TensorView view = tensor.view();
    view.device = {DeviceKind::Cuda, 0};
    expect_contains(refused<InvalidArgument>(view, view), "KOLO_WITH_CUDA=ON");
  });
}

TEST(SharedGpuTest, NeedsToBeAskedFor) {
  for (const bool may_share : {false, true}) {
    Setting setting = setting_of(3);
    setting.network.is_one_gpu = true;
    setting.config.share_gpu = may_share;
    run_programs(setting, [&](Runtime& runtime, FakeWorld& world) {
      Program program(world);
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
                Program program(world);
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

TEST(DeviceFailureTest, WhatNeverEndsOnTheGpuEndsTheSetOnAllRanks) {
  Config config = test_config();
  config.timeout = 300ms;
  config.lost_after = 200ms;
  run_ranks(3,
            [&](FakeWorld& world) {
              Program program(world);
              if (world.topology().rank == 1) world.hub()->lose_collective(1, 1);
              Runtime runtime(options_in(world, config));
              Runtime::set_thread_current(&runtime);
              const auto memory = program.allocate(8);
              const TensorView view = program.view(memory, 8);
              allreduce(view, view, {.name = "good", .stream = program.stream()});
              // Launched everywhere, and so no error yet.
              allreduce(view, view, {.name = "bad", .stream = program.stream()});
              std::this_thread::sleep_for(1s);
              const std::string text = text_thrown_by<PeerLostError>(
                  [&] { allreduce(view, view, {.name = "next", .stream = program.stream()}); });
              expect_contains(text, "'next'");
              expect_contains(text, "allreduce 'bad' was launched on the GPU and has not ended");
            },
            {.gpus_per_rank = 1, .late_launches = true});
}

}  // namespace kolo::test::device_test

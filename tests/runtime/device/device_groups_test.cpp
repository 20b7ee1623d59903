// How often collectives are launched on GPUs, and which memory the communicator knows.
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "kolo/shared_buffer.hpp"
#include "runtime/device/programs.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"

namespace kolo::test::device_groups_test {

using namespace std::chrono_literals;

/// Tensors of a program, each with a number of floats.
class Tensors {
 public:
  Tensors(GpuProgram& program, std::vector<std::size_t> counts)
      : program_(program), counts_(std::move(counts)) {
    for (const std::size_t count : counts_) memory_.push_back(program.allocate(count));
  }

  std::size_t size() const { return counts_.size(); }
  TensorView view(std::size_t i) const { return program_.view(memory_[i], counts_[i]); }
  std::byte* data(std::size_t i) const { return memory_[i].get(); }
  /// value, value + 1, … in all elements of each tensor.
  void write(float value) {
    for (std::size_t i = 0; i < size(); ++i) {
      program_.write(memory_[i], counts_[i], value + static_cast<float>(i));
    }
  }
  void expect(std::size_t i, const std::vector<float>& values) {
    EXPECT_EQ(program_.read(memory_[i], counts_[i]), values) << "tensor " << i;
  }
  void expect_all(std::size_t i, float value) { expect(i, std::vector<float>(counts_[i], value)); }

  std::vector<InputOutput> in_place() const {
    std::vector<InputOutput> pairs;
    for (std::size_t i = 0; i < size(); ++i) pairs.push_back({view(i), view(i)});
    return pairs;
  }

 private:
  GpuProgram& program_;
  std::vector<std::size_t> counts_;
  std::vector<std::shared_ptr<std::byte>> memory_;
};

class DeviceGroupsTest : public testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }
  float ranks() const { return static_cast<float>(size()); }
  /// The sum over ranks r of r + 1 + i.
  float sum_at(std::size_t i) const {
    return ranks() * (ranks() + 1) / 2 + ranks() * static_cast<float>(i);
  }
};
INSTANTIATE_TEST_SUITE_P(, DeviceGroupsTest, testing::Values(1, 2, 3, 4));

TEST_P(DeviceGroupsTest, MovesOfOneOperationAreLaunchedTogether) {
  run_programs(setting_with_gpus(size()), [&](Runtime& runtime, FakeWorld& world) {
    GpuProgram program(world);
    const float own = static_cast<float>(runtime.rank() + 1);
    const int root = size() - 1;
    Tensors sent(program, {7, 1, 0, 33, 5});
    sent.write(own);
    grouped_broadcast({sent.view(0), sent.view(1), sent.view(2), sent.view(3), sent.view(4)}, root,
                      {.name = "b", .stream = program.stream()});
    for (std::size_t i = 0; i < sent.size(); ++i) {
      sent.expect_all(i, ranks() + static_cast<float>(i));
    }
    EXPECT_EQ(world.hub()->launches(runtime.rank()), 1);

    const auto all = static_cast<std::size_t>(size());
    Tensors rows(program, {7, 33});
    Tensors gathered(program, {7 * all, 33 * all});
    rows.write(own);
    std::vector<InputRows> inputs;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      inputs.push_back({rows.view(i), [&gathered, i](const std::vector<std::int64_t>&) {
                          return gathered.data(i);
                        }});
    }
    grouped_allgather(std::move(inputs), {.name = "g", .stream = program.stream()});
    for (std::size_t i = 0; i < rows.size(); ++i) {
      std::vector<float> expected;
      for (int rank = 0; rank < size(); ++rank) {
        expected.insert(expected.end(), i == 0 ? 7 : 33,
                        static_cast<float>(rank + 1) + static_cast<float>(i));
      }
      gathered.expect(i, expected);
    }
    EXPECT_EQ(world.hub()->launches(runtime.rank()), 2);
  });
}

TEST_P(DeviceGroupsTest, ReductionsInPlaceAreLaunchedTogether) {
  Setting setting = setting_with_gpus(size());
  setting.config.fusion = false;
  run_programs(setting, [&](Runtime& runtime, FakeWorld& world) {
    GpuProgram program(world);
    const float own = static_cast<float>(runtime.rank() + 1);
    Tensors tensors(program, {7, 1, 64, 33});
    tensors.write(own);
    grouped_allreduce(
        tensors.in_place(),
        {.op = ReduceOp::Sum, .prescale = 0.5, .name = "r", .stream = program.stream()});
    for (std::size_t i = 0; i < tensors.size(); ++i) tensors.expect_all(i, sum_at(i) / 2);
    EXPECT_EQ(world.hub()->launches(runtime.rank()), 1);

    const auto all = static_cast<std::size_t>(size());
    Tensors inputs(program, {2 * all, 5 * all});
    Tensors outputs(program, {2, 5});
    inputs.write(own);
    grouped_reduce_scatter(
        {{inputs.view(0), outputs.view(0)}, {inputs.view(1), outputs.view(1)}},
        {.op = ReduceOp::Sum, .postscale = 2.0, .name = "s", .stream = program.stream()});
    for (std::size_t i = 0; i < outputs.size(); ++i) outputs.expect_all(i, 2 * sum_at(i));
    EXPECT_EQ(world.hub()->launches(runtime.rank()), 2);
  });
}

/// Of small ones in staging memory, and large ones where they are.
TEST_P(DeviceGroupsTest, PackedTensorsAreOneAndTheLargeOnesAnother) {
  Setting setting = setting_with_gpus(size());
  setting.config.fusion_bytes = 400;
  run_programs(setting, [&](Runtime& runtime, FakeWorld& world) {
    GpuProgram program(world);
    Tensors tensors(program, {20, 30, 101, 7, 200});
    for (int step = 0; step < 3; ++step) {
      tensors.write(static_cast<float>(runtime.rank() + 1));
      const int before = world.hub()->launches(runtime.rank());
      grouped_allreduce(tensors.in_place(),
                        {.op = ReduceOp::Sum, .name = "r", .stream = program.stream()});
      for (std::size_t i = 0; i < tensors.size(); ++i) tensors.expect_all(i, sum_at(i));
      EXPECT_EQ(world.hub()->launches(runtime.rank()) - before, 2);
    }
  });
}

/// Reduces two tensors in staging memory.
void reduce_packed(GpuProgram& program, ProcessSet& set, std::size_t count) {
  Tensors tensors(program, {count, count});
  tensors.write(1.0F);
  const auto size = static_cast<float>(set.size());
  grouped_allreduce(
      tensors.in_place(),
      {.op = ReduceOp::Sum, .name = "r", .process_set = &set, .stream = program.stream()});
  tensors.expect_all(0, size);
  tensors.expect_all(1, 2 * size);
}

std::vector<int> everybody(int size) {
  std::vector<int> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(rank);
  return ranks;
}

/// Repeats `step` on all ranks until each of them is done, for half a minute at most.
void repeat_until(const std::function<bool()>& is_done, const std::function<void()>& step) {
  const auto until = std::chrono::steady_clock::now() + 30s;
  while (true) {
    Tensor goes_on(1);
    goes_on.fill([&](std::size_t) {
      return is_done() || std::chrono::steady_clock::now() > until ? 0.0 : 1.0;
    });
    allreduce(goes_on.view(), goes_on.view(), {.op = ReduceOp::Max, .name = "goes on"});
    if (goes_on.at(0) == 0.0) return;
    step();
  }
}

int live(const FakeRegistrations::Count& count) { return count.made - count.ended; }

TEST_P(DeviceGroupsTest, StagingIsRegisteredAsLongAsItLives) {
  run_programs(setting_with_gpus(size()), [&](Runtime& runtime, FakeWorld& world) {
    GpuProgram program(world);
    const auto count = [&] { return world.hub()->registrations(runtime.rank()); };
    ProcessSet& added = runtime.add_process_set(everybody(size()));
    EXPECT_EQ(count(), FakeRegistrations::Count{});
    reduce_packed(program, added, 10);
    EXPECT_EQ(count(), (FakeRegistrations::Count{1, 0}));
    reduce_packed(program, added, 10);
    EXPECT_EQ(count(), (FakeRegistrations::Count{1, 0}));
    for (std::size_t floats = 200; floats < 5000; floats *= 2) {
      reduce_packed(program, added, floats);
    }
    EXPECT_GT(count().made, 3);
    // The GPU may not have ended with the earlier ones when the next batch looks.
    repeat_until([&] { return live(count()) == 1; }, [&] { reduce_packed(program, added, 10); });
    EXPECT_EQ(live(count()), 1);
    runtime.remove_process_set(added);
    EXPECT_EQ(live(count()), 0);
  });
}

/// As buckets of gradients are.
TEST_P(DeviceGroupsTest, SharedBufferIsRegisteredWhileTheProgramHasIt) {
  run_programs(setting_with_gpus(size()), [&](Runtime& runtime, FakeWorld& world) {
    GpuProgram program(world);
    const auto count = [&] { return world.hub()->registrations(runtime.rank()); };
    const AllreduceOptions options{.op = ReduceOp::Sum, .name = "x", .stream = program.stream()};
    auto memory = program.allocate(100);
    std::weak_ptr<std::byte> alive = memory;
    auto buffer =
        std::make_unique<SharedBuffer>("bucket", program.view(memory, 100), std::move(memory));
    for (int step = 0; step < 5; ++step) {
      program.write(alive.lock(), 100, 1.0F);
      allreduce(*buffer, 0, 60, DType::Float32, options);
      allreduce(*buffer, 240, 40, DType::Float32, options);
      EXPECT_EQ(program.read(alive.lock(), 100), std::vector<float>(100, ranks()));
      EXPECT_EQ(count(), (FakeRegistrations::Count{1, 0}));
    }
    buffer.reset();
    // Operations own the buffer until somebody sees that the GPU has ended with them.
    const auto other = program.allocate(10);
    program.write(other, 10, 1.0F);
    repeat_until([&] { return alive.expired(); },
                 [&] {
                   allreduce(program.view(other, 10), program.view(other, 10), options);
                   program.synchronize();
                 });
    EXPECT_TRUE(alive.expired());
    EXPECT_EQ(count(), (FakeRegistrations::Count{1, 1}));
  });
}

/// Neither set may keep what the other one knows, too.
TEST_P(DeviceGroupsTest, SharedBufferOfTwoSetsIsFreedWhenTheProgramHasItNoLonger) {
  run_programs(setting_with_gpus(size()), [&](Runtime& runtime, FakeWorld& world) {
    GpuProgram program(world);
    ProcessSet& added = runtime.add_process_set(everybody(size()));
    auto memory = program.allocate(100);
    const std::weak_ptr<std::byte> alive = memory;
    auto buffer =
        std::make_unique<SharedBuffer>("bucket", program.view(memory, 100), std::move(memory));
    const auto reduce_in = [&](ProcessSet& set, const std::string& name) {
      const AllreduceOptions options{
          .op = ReduceOp::Max, .name = name, .process_set = &set, .stream = program.stream()};
      if (buffer != nullptr) allreduce(*buffer, 0, 100, DType::Float32, options);
      const auto other = program.allocate(10);
      program.write(other, 10, 1.0F);
      allreduce(program.view(other, 10), program.view(other, 10), options);
      program.synchronize();
    };
    program.write(alive.lock(), 100, 1.0F);
    for (ProcessSet* const set : {&runtime.world(), &added}) reduce_in(*set, "both");
    EXPECT_EQ(world.hub()->registrations(runtime.rank()), (FakeRegistrations::Count{2, 0}));
    buffer.reset();
    repeat_until([&] { return alive.expired(); },
                 [&] {
                   for (ProcessSet* const set : {&runtime.world(), &added}) reduce_in(*set, "x");
                 });
    EXPECT_TRUE(alive.expired());
    EXPECT_EQ(world.hub()->registrations(runtime.rank()), (FakeRegistrations::Count{2, 2}));
  });
}

/// NCCL's abort ends registrations, after which NCCL knows the communicator no longer.
TEST(DeviceFailureTest, AbortEndsAllRegistrations) {
  Config config = test_config();
  config.timeout = 300ms;
  config.lost_after = 200ms;
  std::shared_ptr<FakeGpuHub> hub;
  run_ranks(3,
            [&](FakeWorld& world) {
              const int rank = world.topology().rank;
              if (rank == 0) hub = world.hub();
              if (rank == 1) world.hub()->lose_collective(1, 2);
              GpuProgram program(world);
              Runtime runtime(options_in(world, config));
              Runtime::set_thread_current(&runtime);
              reduce_packed(program, runtime.world(), 10);
              reduce_packed(program, runtime.world(), 1000);  // outgrows the first
              Tensors lost(program, {4000, 4000});
              grouped_allreduce(lost.in_place(), {.name = "bad", .stream = program.stream()});
              std::this_thread::sleep_for(1s);
              EXPECT_THROW(reduce_packed(program, runtime.world(), 10), PeerLostError);
            },
            {.gpus_per_rank = 1});
  const auto until = std::chrono::steady_clock::now() + 30s;  // aborts are awaited for a second
  for (int rank = 0; rank < 3; ++rank) {
    while (live(hub->registrations(rank)) > 0 && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(1ms);
    }
    EXPECT_GE(hub->registrations(rank).made, 3);
    EXPECT_EQ(live(hub->registrations(rank)), 0) << "rank " << rank;
  }
}

}  // namespace kolo::test::device_groups_test

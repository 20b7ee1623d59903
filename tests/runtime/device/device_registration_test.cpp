// Which memory is registered with NCCL, and for how long. The fake GPUs report calls in which some
// ranks pass registered memory and others do not.
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
#include "support/becomes_true.hpp"

namespace kolo::test::device_registration_test {

using namespace std::chrono_literals;

int live(const FakeRegistrations::Count& count) { return count.made - count.ended; }

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

/// Repeats `step` on all ranks until every one of them is done, for at most half a minute.
void repeat_until(const std::function<bool()>& is_done, const std::function<void()>& step) {
  const auto until = std::chrono::steady_clock::now() + 30s;
  while (true) {
    Tensor is_running(1);
    is_running.fill([&](std::size_t) {
      return is_done() || std::chrono::steady_clock::now() > until ? 0.0 : 1.0;
    });
    allreduce(is_running.view(), is_running.view(), {.op = ReduceOp::Max, .name = "goes on"});
    if (is_running.at(0) == 0.0) return;
    step();
  }
}

/// A SharedBuffer of floats on the GPU, whose only owner it is.
class Bucket {
 public:
  static constexpr std::size_t kFloats = 100;

  explicit Bucket(GpuProgram& program, const std::string& name = "bucket") {
    auto memory = program.allocate(kFloats);
    alive_ = memory;
    buffer_ =
        std::make_unique<SharedBuffer>(name, program.view(memory, kFloats), std::move(memory));
  }

  const SharedBuffer& buffer() const { return *buffer_; }
  std::shared_ptr<std::byte> memory() const { return alive_.lock(); }
  void give_up() { buffer_.reset(); }
  bool is_freed() const { return alive_.expired(); }

 private:
  std::weak_ptr<std::byte> alive_;
  std::unique_ptr<SharedBuffer> buffer_;
};

void reduce_bucket(GpuProgram& program, ProcessSet& set, const Bucket& bucket) {
  program.write(bucket.memory(), Bucket::kFloats, 1.0F);
  allreduce(bucket.buffer(), 0, Bucket::kFloats, DType::Float32,
            {.op = ReduceOp::Sum, .name = "b", .process_set = &set, .stream = program.stream()});
  EXPECT_EQ(program.read(bucket.memory(), Bucket::kFloats),
            std::vector<float>(Bucket::kFloats, static_cast<float>(set.size())));
}

class DeviceRegistrationTest : public testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(, DeviceRegistrationTest, testing::Values(1, 2, 3, 4));

TEST_P(DeviceRegistrationTest, StagingIsRegisteredAsLongAsItLives) {
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
    // The GPU may not have finished the earlier batches when the next one checks.
    repeat_until([&] { return live(count()) == 1; }, [&] { reduce_packed(program, added, 10); });
    EXPECT_EQ(live(count()), 1);
    runtime.remove_process_set(added);
    EXPECT_EQ(live(count()), 0);
  });
}

/// As for buckets of gradients. No batch follows the last one.
TEST_P(DeviceRegistrationTest, SharedBufferIsRegisteredAndKeptWhileTheProgramHasIt) {
  run_programs(setting_with_gpus(size()), [&](Runtime& runtime, FakeWorld& world) {
    GpuProgram program(world);
    const auto count = [&] { return world.hub()->registrations(runtime.rank()); };
    Bucket bucket(program);
    for (int step = 0; step < 5; ++step) {
      reduce_bucket(program, runtime.world(), bucket);
      EXPECT_EQ(count(), (FakeRegistrations::Count{2, 0}));  // the first staging memory, too
    }
    bucket.give_up();
    EXPECT_TRUE(becomes_true([&] { return bucket.is_freed(); }));
    EXPECT_EQ(count(), (FakeRegistrations::Count{2, 1}));
  });
}

TEST_P(DeviceRegistrationTest, OneSharedBufferIsReleasedWhileOthersAreUsed) {
  run_programs(setting_with_gpus(size()), [&](Runtime& runtime, FakeWorld& world) {
    GpuProgram program(world);
    Bucket kept(program, "kept");
    for (int round = 0; round < 5; ++round) {
      Bucket bucket(program, "bucket " + std::to_string(round));
      reduce_bucket(program, runtime.world(), bucket);
      bucket.give_up();
      reduce_bucket(program, runtime.world(), kept);
      EXPECT_TRUE(becomes_true([&] { return bucket.is_freed(); }));
    }
    EXPECT_EQ(world.hub()->registrations(runtime.rank()), (FakeRegistrations::Count{7, 5}));
  });
}

/// Neither set may keep a buffer because the other one has registered it.
TEST_P(DeviceRegistrationTest, SharedBufferOfTwoSetsIsFreedWhenTheProgramHasItNoLonger) {
  run_programs(setting_with_gpus(size()), [&](Runtime& runtime, FakeWorld& world) {
    GpuProgram program(world);
    ProcessSet& added = runtime.add_process_set(everybody(size()));
    Bucket bucket(program);
    for (ProcessSet* const set : {&runtime.world(), &added}) reduce_bucket(program, *set, bucket);
    EXPECT_EQ(world.hub()->registrations(runtime.rank()), (FakeRegistrations::Count{4, 0}));
    bucket.give_up();
    EXPECT_TRUE(becomes_true([&] { return bucket.is_freed(); }));
    EXPECT_EQ(world.hub()->registrations(runtime.rank()), (FakeRegistrations::Count{4, 2}));
  });
}

TEST_P(DeviceRegistrationTest, NothingIsRegisteredWhereARankCannot) {
  for (const int rank : {0, size() - 1}) {
    run_programs(setting_with_gpus(size()), [&](Runtime& runtime, FakeWorld& world) {
      if (runtime.rank() == rank) world.hub()->refuse_registrations(rank);
      GpuProgram program(world);
      Bucket bucket(program);
      for (const std::size_t count : {10U, 1000U}) {
        reduce_packed(program, runtime.world(), count);
        reduce_bucket(program, runtime.world(), bucket);
        EXPECT_EQ(live(world.hub()->registrations(runtime.rank())), 0);
      }
    });
  }
}

void lose_a_collective(FakeWorld& world) {
  Config config = test_config();
  config.timeout = 300ms;
  config.lost_after = 200ms;
  GpuProgram program(world);
  if (world.topology().rank == 1) world.hub()->lose_collective(1, 3);
  Runtime runtime(options_in(world, config));
  Runtime::set_thread_current(&runtime);
  Bucket kept(program, "kept");
  Bucket released(program, "released");
  reduce_packed(program, runtime.world(), 1000);  // outgrows the first
  reduce_bucket(program, runtime.world(), kept);
  reduce_bucket(program, runtime.world(), released);
  released.give_up();
  EXPECT_TRUE(becomes_true([&] { return released.is_freed(); }));
  world.hub()->block_aborts(runtime.rank());
  Tensors lost(program, {4000, 4000});
  grouped_allreduce(lost.in_place(), {.name = "bad", .stream = program.stream()});
  std::this_thread::sleep_for(1s);
  EXPECT_THROW(reduce_packed(program, runtime.world(), 10), PeerLostError);
  kept.give_up();
  std::this_thread::sleep_for(50ms);
  EXPECT_FALSE(kept.is_freed());  // it is still registered with NCCL
  world.hub()->unblock(runtime.rank());
  EXPECT_TRUE(becomes_true([&] { return kept.is_freed(); }));
}

/// NCCL's abort ends registrations, and the communicator is invalid afterwards.
TEST(DeviceFailureTest, AbortEndsAllRegistrationsAndReleasesBuffers) {
  std::shared_ptr<FakeGpuHub> hub;
  run_ranks(3,
            [&](FakeWorld& world) {
              if (world.topology().rank == 0) hub = world.hub();
              lose_a_collective(world);
            },
            {.gpus_per_rank = 1});
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(becomes_true([&] { return live(hub->registrations(rank)) == 0; }))
        << "rank " << rank;
    EXPECT_GE(hub->registrations(rank).made, 5);
  }
}

/// It must not be used together with registered memory of the other ranks.
TEST(DeviceFailureTest, StagingThatIsRefusedLaterEndsTheSetOnAllRanks) {
  run_ranks(3,
            [&](FakeWorld& world) {
              GpuProgram program(world);
              Runtime runtime(options_in(world, test_config()));
              Runtime::set_thread_current(&runtime);
              reduce_packed(program, runtime.world(), 10);
              if (runtime.rank() == 1) world.hub()->refuse_registrations(1);
              barrier();
              Tensors tensors(program, {1000, 1000});
              std::string text;
              for (int step = 0; step < 1000 && text.empty(); ++step) {
                try {
                  grouped_allreduce(tensors.in_place(), {.name = "x", .stream = program.stream()});
                  std::this_thread::sleep_for(1ms);
                } catch (const PeerLostError& error) {
                  text = error.what();
                }
              }
              expect_contains(text, "rank 1");
              expect_contains(text, "NCCL_LOCAL_REGISTER=0");
            },
            {.gpus_per_rank = 1});
}

}  // namespace kolo::test::device_registration_test

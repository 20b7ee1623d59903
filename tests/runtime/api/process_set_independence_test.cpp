// A blocked process set does not block another one.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <latch>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "kolo/shared_buffer.hpp"
#include "runtime/every_world.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"

namespace kolo::test::process_set_independence_test {

using namespace std::chrono_literals;

class IndependenceTest : public testing::TestWithParam<Setting> {};

INSTANTIATE_TEST_SUITE_P(
    , IndependenceTest,
    testing::Values(
        Setting{.name = "Shared", .size = 3},
        Setting{.name = "Messages",
                .size = 3,
                .network = {.nodes = 3, .longest_delay = 100us, .rendezvous = true}},
        Setting{.name = "Gpu", .size = 3, .network = {.gpus_per_rank = 1, .late_launches = true}}),
    [](const auto& setting) { return setting.param.name; });

constexpr int kRounds = 100;  // of the other set, while the first is blocked

/// The rank that is blocked, and whether a caller waits for the operation.
struct Hold {
  int rank;
  bool is_driven_by_a_caller;
};

TEST_P(IndependenceTest, HeldOperation_HoldsUpNoOtherSet) {
  for (const Hold hold : {Hold{0, false}, Hold{0, true}, Hold{1, false}}) {
    std::latch has_begun(1);
    std::latch released(1);
    run_runtimes(GetParam(), [&](Runtime& runtime) {
      ProcessSet& held = runtime.add_process_set({0, 1, 2});
      ProcessSet& other = runtime.add_process_set({0, 1, 2});
      Rows output{DType::Float32, 1};
      AllocateRows allocate = output.allocator();
      if (runtime.rank() == hold.rank) {
        allocate = [&, allocate](const std::vector<std::int64_t>& rows) {
          has_begun.count_down();
          released.wait();
          return allocate(rows);
        };
      }
      const Tensor input(4);
      Handle handle = allgather_async(input.view(), allocate, {.name = "x", .process_set = &held});
      std::thread caller;
      if (hold.is_driven_by_a_caller) caller = std::thread([&] { handle.wait(); });
      has_begun.wait();
      for (int round = 0; round < kRounds; ++round) {
        // For half of them no caller drives the other set either.
        Tensor tensor(5);
        tensor.fill([&](std::size_t i) { return input_value(runtime.rank(), i); });
        Handle free = allreduce_async(tensor.view(), tensor.view(),
                                      {.op = ReduceOp::Sum, .name = "y", .process_set = &other});
        while (round % 2 == 0 && !free.is_ready()) std::this_thread::sleep_for(10us);
        free.wait();
        tensor.expect([](std::size_t i) { return input_sum(3, i); }, "y");
      }
      expect_sum_works(runtime, "the world too");
      if (runtime.rank() == hold.rank) {
        EXPECT_FALSE(handle.is_ready());
        released.count_down();
      }
      if (caller.joinable()) {
        caller.join();
      } else {
        handle.wait();
      }
      EXPECT_EQ(output.counts, (std::vector<std::int64_t>{4, 4, 4}));
    });
  }
}

/// Rank 1 is blocked on the CPU, before or after the others are about to launch on their GPUs.
TEST(IndependenceOnGpusTest, OperationHeldOnTheCpu_HoldsUpNoOtherSet) {
  const Setting setting{.size = 3,
                        .network = {.nodes = 3, .longest_delay = 100us, .gpus_per_rank = 1}};
  for (const bool is_gpu_first : {false, true}) {
    std::latch has_begun(1);
    std::latch released(1);
    run_runtimes(setting, [&](Runtime& runtime) {
      ProcessSet& held = runtime.add_process_set({0, 1, 2});
      ProcessSet& other = runtime.add_process_set({0, 1, 2});
      expect_sum_works(held, "connects");
      Tensor tensor(5);
      tensor.fill([&](std::size_t i) { return input_value(runtime.rank(), i); });
      float row = 1.0F;
      std::vector<float> rows;
      const AllocateRows allocate = [&](const std::vector<std::int64_t>& counts) -> void* {
        if (runtime.rank() == 1) {
          has_begun.count_down();
          released.wait();
        }
        rows.resize(counts.size());
        return rows.data();
      };
      const auto reduce = [&] {
        return allreduce_async(tensor.view(), tensor.view(),
                               {.op = ReduceOp::Sum, .name = "x", .process_set = &held});
      };
      Handle reduced;
      if (is_gpu_first) reduced = reduce();
      Handle gathered = allgather_async({&row, DType::Float32, {1}, {}}, allocate,
                                        {.name = "held", .process_set = &held});
      if (!is_gpu_first) reduced = reduce();
      has_begun.wait();
      for (int round = 0; round < kRounds; ++round) expect_sum_works(other, "y");
      if (runtime.rank() == 1) released.count_down();
      gathered.wait();
      reduced.wait();
      tensor.expect([](std::size_t i) { return input_sum(3, i); }, "x");
      EXPECT_EQ(rows, std::vector<float>(3, 1.0F));
    });
  }
}

TEST_P(IndependenceTest, RankLateForOneSet_HoldsUpNoOtherSet) {
  run_runtimes(GetParam(), [&](Runtime& runtime) {
    ProcessSet& late = runtime.add_process_set({1, 0});
    ProcessSet& other = runtime.add_process_set({1, 2});
    Tensor tensor(7);
    tensor.fill([&](std::size_t i) { return input_value(runtime.rank(), i); });
    const AllreduceOptions options{.op = ReduceOp::Sum, .name = "x", .process_set = &late};
    Handle handle;
    if (runtime.rank() == 0) handle = allreduce_async(tensor.view(), tensor.view(), options);
    for (int round = 0; round < kRounds && other.included(); ++round) expect_sum_works(other, "y");
    expect_sum_works(runtime, "the world too");
    if (runtime.rank() == 0) {
      EXPECT_FALSE(handle.is_ready());
    }
    barrier({.name = "looked"});
    if (runtime.rank() == 1) handle = allreduce_async(tensor.view(), tensor.view(), options);
    if (late.included()) {
      handle.wait();
      tensor.expect([](std::size_t i) { return input_sum(2, i); }, "x");
    }
  });
}

std::atomic_flag* reduction_has_begun = nullptr;
std::latch* reduction_is_released = nullptr;

/// The maximum of float32; blocks until it is released.
void combine_slowly(DType, const void* next, void* accumulator, std::size_t count) {
  reduction_has_begun->test_and_set();  // in shared memory every rank combines
  reduction_has_begun->notify_all();
  reduction_is_released->wait();
  const auto* from = static_cast<const float*>(next);
  auto* to = static_cast<float*>(accumulator);
  for (std::size_t i = 0; i < count; ++i) to[i] = std::max(to[i], from[i]);
}
void fill_lowest(DType, void* values, std::size_t count) {
  std::fill_n(static_cast<float*>(values), count, std::numeric_limits<float>::lowest());
}

TEST_P(IndependenceTest, HeldReduction_HoldsUpNoOtherSet) {
  std::atomic_flag has_begun;
  std::latch released(1);
  reduction_has_begun = &has_begun;
  reduction_is_released = &released;
  run_ranks(2,
            [&](FakeWorld& world) {
              InitOptions options = options_in(world, GetParam().config);
              options.reductions = {{"slow", combine_slowly, fill_lowest}};
              options.process_sets = {{0, 1}};
              Runtime runtime(std::move(options));
              Runtime::set_thread_current(&runtime);
              ProcessSet& held = runtime.process_set(1);
              Tensor tensor(1);
              tensor.fill([&](std::size_t) { return 1.0 + runtime.rank(); });
              Handle handle = allreduce_async(
                  tensor.view(), tensor.view(),
                  {.op = ReduceOp::Custom, .custom = "slow", .name = "x", .process_set = &held});
              has_begun.wait(false);
              for (int round = 0; round < kRounds; ++round) expect_sum_works(runtime, "y");
              if (runtime.rank() == 0) released.count_down();
              handle.wait();
              tensor.expect([](std::size_t) { return 2; }, "x");
            },
            {.has_shared_memory = GetParam().name == "Shared"});
}

}  // namespace kolo::test::process_set_independence_test

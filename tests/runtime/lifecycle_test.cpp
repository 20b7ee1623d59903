// Handles, names, the life of a Runtime, shared buffers, and what the protocol costs.
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "kolo/shared_buffer.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"

namespace kolo::test {
namespace {

using namespace std::chrono_literals;

TEST(HandleTest, ANameInFlightIsRefused) {
  run_runtimes(2, [](Runtime& runtime) {
    Tensor tensor(4);
    Tensor other(4);
    if (runtime.rank() == 1) std::this_thread::sleep_for(50ms);
    tensor.fill([&](std::size_t i) { return input_value(runtime.rank(), i); });
    AllreduceOptions options{.op = ReduceOp::Sum, .name = "x"};
    Handle first = allreduce_async(tensor.view(), tensor.view(), options);
    if (runtime.rank() == 0) {
      const std::string text = text_thrown_by<InvalidArgument>(
          [&] { allreduce(other.view(), other.view(), options); });
      expect_contains(text, "allreduce 'x' on process set world");
      expect_contains(text, "in flight");
    }
    first.wait();
    tensor.expect([](std::size_t i) { return input_sum(2, i); }, "the first one");
    expect_sum_works(runtime, "x");  // free again
  });
}

TEST(HandleTest, ReadyOnlyOnceAllRanksHaveSubmitted) {
  run_runtimes(3, [](Runtime& runtime) {
    expect_sum_works(runtime, "before");
    Tensor tensor(4);
    if (runtime.rank() == 1) std::this_thread::sleep_for(100ms);
    Handle handle = allreduce_async(tensor.view(), tensor.view(), {.name = "x"});
    if (runtime.rank() != 1) {
      EXPECT_FALSE(handle.is_ready());
      EXPECT_FALSE(handle.wait_for(1ms));
    }
    EXPECT_TRUE(handle.wait_for(30s));
    EXPECT_TRUE(handle.is_ready());
    EXPECT_LE(handle.started(), handle.ended());
    handle.wait();
    handle.wait();
  });
}

TEST(HandleTest, CompletesWithoutAWaitingCaller) {
  run_runtimes(3, [](Runtime& runtime) {
    Tensor tensor(70000);
    tensor.fill([&](std::size_t i) { return input_value(runtime.rank(), i); });
    const Handle handle =
        allreduce_async(tensor.view(), tensor.view(), {.op = ReduceOp::Sum, .name = "x"});
    while (!handle.is_ready()) std::this_thread::sleep_for(1ms);
    tensor.expect([](std::size_t i) { return input_sum(3, i); }, "x");
  });
}

TEST(HandleTest, DroppedItsOperationGoesOnAndKeepsItsMemory) {
  run_runtimes(2, [](Runtime& runtime) {
    auto tensor = std::make_shared<Tensor>(1000);
    const std::weak_ptr<Tensor> observer = tensor;
    if (runtime.rank() == 0) std::this_thread::sleep_for(50ms);
    {
      const Handle dropped = allreduce_async(
          tensor->view(), tensor->view(),
          {.op = ReduceOp::Sum, .name = "x", .keep_alive = tensor});
      tensor.reset();
    }
    EXPECT_EQ(observer.expired(), false) << "the other rank has not even begun";
    expect_sum_works(runtime, "y");
    while (!observer.expired()) std::this_thread::sleep_for(1ms);
    expect_sum_works(runtime, "x");
  });
}

TEST(HandleTest, StandsForNothingOnceMovedFrom) {
  run_runtimes(1, [](Runtime&) {
    Tensor tensor(4);
    Handle handle = allreduce_async(tensor.view(), tensor.view());
    Handle moved = std::move(handle);
    moved.wait();
    EXPECT_THROW(handle.wait(), InvalidArgument);  // NOLINT: what moving leaves behind is the point
    EXPECT_THROW(handle.wait_for(1ms), InvalidArgument);
    EXPECT_THROW(static_cast<void>(handle.is_ready()), InvalidArgument);
    EXPECT_THROW(Handle().wait(), InvalidArgument);
  });
}

TEST(HandleTest, RethrowsItsErrorEachTime) {
  run_runtimes(2, [](Runtime& runtime) {
    Tensor tensor(4 + runtime.rank());
    Handle handle = allreduce_async(tensor.view(), tensor.view(), {.name = "x"});
    const auto text = [&] { return text_thrown_by<MismatchError>([&] { handle.wait(); }); };
    EXPECT_EQ(text(), text());
    EXPECT_TRUE(handle.is_ready());
  });
}

TEST(HandleTest, ThreadsOfOneRankSubmitAndWaitAtOnce) {
  run_runtimes(2, [](Runtime& runtime) {
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < 3; ++t) {
      threads.emplace_back([&runtime, t] {
        for (std::size_t step = 0; step < 20; ++step) {
          Tensor tensor(100);
          tensor.fill([&](std::size_t i) { return input_value(runtime.rank(), i, t + step); });
          const std::string name = "of thread " + std::to_string(t);
          allreduce(tensor.view(), tensor.view(),
                    {.op = ReduceOp::Sum, .name = name, .process_set = &runtime.world()});
          tensor.expect([&](std::size_t i) { return input_sum(2, i, t + step); }, name);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

TEST(RuntimeTest, KnowsItsPlace) {
  const Setting setting{.size = 7, .network = {.nodes = 3}};  // 3 + 2 + 2
  run_runtimes(setting, [](Runtime& runtime) {
    const int rank = runtime.rank();
    EXPECT_EQ(runtime.size(), 7);
    EXPECT_EQ(runtime.local_rank(), rank < 3 ? rank : (rank - 3) % 2);
    EXPECT_EQ(runtime.local_size(), rank < 3 ? 3 : 2);
    EXPECT_EQ(runtime.cross_rank(), rank == 2 ? 0 : rank < 3 ? 0 : 1 + (rank - 3) / 2);
    EXPECT_EQ(runtime.cross_size(), rank == 2 ? 1 : 3);
    EXPECT_FALSE(runtime.is_homogeneous());
    EXPECT_EQ(rank, kolo::rank());
    EXPECT_EQ(runtime.local_rank(), kolo::local_rank());
    EXPECT_EQ(runtime.cross_size(), kolo::cross_size());
    EXPECT_EQ(runtime.world().rank(), rank);
    EXPECT_EQ(runtime.world().ranks(), (std::vector<int>{0, 1, 2, 3, 4, 5, 6}));
    EXPECT_EQ(runtime.world().name(), "world");
  });
}

TEST(RuntimeTest, MayBeMadeAgain) {
  for (const int nodes : {1, 3}) {
    run_ranks(
        3,
        [](FakeWorld& world) {
          for (int round = 0; round < 3; ++round) {
            Runtime runtime(options_in(world, test_config()));
            Runtime::set_thread_current(&runtime);
            expect_sum_works(runtime, "x");
            expect_sum_works(runtime, "y", 1000);
          }
        },
        {.nodes = nodes, .rendezvous = true});
  }
}

TEST(RuntimeTest, ConfigurationsThatDifferAreRefusedOnEveryRank) {
  run_ranks(3, [](FakeWorld& world) {
    Config config = test_config();
    config.log_level = world.topology().rank == 0 ? "error" : "debug";  // these may differ
    config.fusion_bytes = world.topology().rank == 2 ? 1 << 20 : 1 << 19;
    const std::string text =
        text_thrown_by<InvalidArgument>([&] { Runtime runtime(options_in(world, config)); });
    expect_contains(text, "rank 0 has KOLO_FUSION_BYTES=512KB");
    expect_contains(text, "rank 2 has KOLO_FUSION_BYTES=1MB");
  });
}

TEST(RuntimeTest, AnUnknownAlgorithmIsRefusedAtTheStart) {
  run_ranks(2, [&](FakeWorld& world) {
    Config config = test_config();
    config.allreduce = "rign";
    const std::string text =
        text_thrown_by<InvalidArgument>([&] { Runtime runtime(options_in(world, config)); });
    expect_contains(text, "rign");
    expect_contains(text, "ring");  // one of the choices
  });
}

TEST(RuntimeTest, WithoutMpirunItIsAWorldOfOne) {
  EXPECT_FALSE(is_initialized());
  EXPECT_THROW(rank(), InvalidArgument);
  init();
  init();  // does nothing
  EXPECT_TRUE(is_initialized());
  EXPECT_EQ(rank(), 0);
  EXPECT_EQ(size(), 1);
  EXPECT_EQ(local_size(), 1);
  EXPECT_EQ(cross_size(), 1);
  EXPECT_TRUE(is_homogeneous());
  expect_sum_works(Runtime::current(), "x", 1000);
  shutdown();
  EXPECT_FALSE(is_initialized());
  shutdown();  // does nothing
  {
    Runtime runtime({.config = test_config()});
    EXPECT_EQ(&Runtime::current(), &runtime);
    expect_sum_works(runtime, "x");
  }
  EXPECT_FALSE(is_initialized());
}

class SharedBufferTest : public testing::TestWithParam<Setting> {};

INSTANTIATE_TEST_SUITE_P(
    , SharedBufferTest,
    testing::Values(Setting{.name = "Alone", .size = 1}, Setting{.name = "Two", .size = 2},
                    Setting{.name = "Three", .size = 3}, Setting{.name = "Seven", .size = 7},
                    Setting{.name = "Nodes", .size = 3, .network = {.nodes = 2}},
                    Setting{.name = "NoMemory", .size = 3, .network = {.has_shared_memory = false}}),
    [](const auto& setting) { return setting.param.name; });

TEST_P(SharedBufferTest, IsReducedInPlaceWithoutPacking) {
  run_runtimes(GetParam(), [](Runtime& runtime) {
    const bool can_share = GetParam().name == "Two" || GetParam().name == "Three" ||
                           GetParam().name == "Seven";
    constexpr std::size_t kCount = 50021;
    const SharedBuffer buffer(2 * kCount * sizeof(float) + 64, {.name = "memory"});
    EXPECT_EQ(buffer.is_shared(), can_share);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64, 0u);
    auto* const values = reinterpret_cast<float*>(buffer.data());
    for (std::size_t i = 0; i < 2 * kCount; ++i) ASSERT_EQ(values[i], 0) << "element " << i;
    const std::uint64_t packed = runtime.world().metrics().bytes_packed;
    for (std::size_t step = 0; step < 4; ++step) {
      for (std::size_t i = 0; i < 2 * kCount; ++i) {
        values[i] = static_cast<float>(input_value(runtime.rank(), i, step));
      }
      Handle second = allreduce_async(buffer, kCount * sizeof(float), kCount, DType::Float32,
                                      {.op = ReduceOp::Sum, .name = "second"});
      Handle first =
          allreduce_async(buffer, 0, 7, DType::Float32, {.op = ReduceOp::Max, .name = "first"});
      first.wait();
      second.wait();
      for (std::size_t i = 0; i < kCount; ++i) {
        ASSERT_EQ(values[kCount + i], input_sum(runtime.size(), kCount + i, step)) << i;
      }
      for (std::size_t i = 7; i < kCount; ++i) {
        ASSERT_EQ(values[i], input_value(runtime.rank(), i, step)) << i;
      }
    }
    EXPECT_EQ(runtime.world().metrics().bytes_packed, packed);
  });
}

TEST_P(SharedBufferTest, KnowsItsBoundsAndOutlivesItsObject) {
  run_runtimes(GetParam(), [](Runtime& runtime) {
    Handle handle;
    {
      const SharedBuffer buffer(640);
      EXPECT_EQ(buffer.size_bytes(), 640u);
      for (const auto& [offset, count] : {std::pair{0, 161}, std::pair{640, 1}, std::pair{704, 0}}) {
        const std::string text = text_thrown_by<InvalidArgument>([&] {
          allreduce_async(buffer, static_cast<std::size_t>(offset), static_cast<std::size_t>(count),
                          DType::Float32, {.name = "x"})
              .wait();
        });
        expect_contains(text, "shared buffer of 640 bytes");
      }
      handle = allreduce_async(buffer, 0, 160, DType::Float32, {.name = "x"});
    }
    handle.wait();
    expect_sum_works(runtime, "y");
  });
}

/// What a program's steps cost once they cost what they always will.
struct Cost {
  std::uint64_t exchanges;
  std::uint64_t fruitless;
  std::uint64_t asks;
  std::uint64_t negotiations;
  std::uint64_t header_bytes;
  std::uint64_t bytes_packed;
};

template <class Step>
Cost cost_of(Runtime& runtime, std::size_t warm_up, std::size_t counted, Step step) {
  std::size_t next = 0;
  while (next < warm_up) step(next++);
  const ProcessSet::Metrics a = runtime.world().metrics();
  while (next < warm_up + counted) step(next++);
  const ProcessSet::Metrics b = runtime.world().metrics();
  for (int i = 0; i < 3; ++i) step(next++);  // another rank's shutdown is not to be counted
  return {b.exchanges - a.exchanges,       b.fruitless_exchanges - a.fruitless_exchanges,
          b.asks - a.asks,                 b.negotiations - a.negotiations,
          b.header_bytes - a.header_bytes, b.bytes_packed - a.bytes_packed};
}

/// Ten tensors, started in the order or against it, then waited for.
void run_step(const Runtime& runtime, std::vector<Tensor>& tensors, bool forward) {
  std::vector<Handle> handles;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::size_t t = forward ? i : tensors.size() - 1 - i;
    tensors[t].fill([&](std::size_t k) { return input_value(runtime.rank(), k, t); });
    handles.push_back(allreduce_async(tensors[t].view(), tensors[t].view(),
                                      {.op = ReduceOp::Sum, .name = std::to_string(t)}));
  }
  for (Handle& handle : handles) handle.wait();
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    tensors[t].expect([&](std::size_t i) { return input_sum(runtime.size(), i, t); },
                      "tensor " + std::to_string(t));
  }
}

class CostTest : public testing::TestWithParam<Setting> {
 protected:
  Setting patient() const {
    Setting setting = GetParam();
    setting.config.patience = 10s;
    setting.config.fusion = false;  // nothing is packed then
    return setting;
  }
};

INSTANTIATE_TEST_SUITE_P(, CostTest,
                         testing::Values(Setting{.name = "Shared", .size = 3},
                                         Setting{.name = "Messages",
                                                 .size = 3,
                                                 .network = {.nodes = 3}}),
                         [](const auto& setting) { return setting.param.name; });

void expect_no_talk(const Cost& cost) {
  EXPECT_EQ(cost.negotiations, 0u);
  EXPECT_EQ(cost.asks, 0u);
  EXPECT_EQ(cost.fruitless, 0u);
}

TEST_P(CostTest, ASteadyProgramNeedsHeadersOnly) {
  run_runtimes(patient(), [](Runtime& runtime) {
    std::vector<Tensor> tensors;
    for (int i = 0; i < 10; ++i) tensors.emplace_back(100 + i);
    const Cost cost = cost_of(runtime, 20, 200,
                              [&](std::size_t) { run_step(runtime, tensors, true); });
    expect_no_talk(cost);
    EXPECT_EQ(cost.bytes_packed, 0u);
    EXPECT_GE(cost.exchanges, 200u);   // all tensors of a step in one exchange
    EXPECT_LE(cost.exchanges, 2000u);  // one in each
  });
}

TEST_P(CostTest, ABlockingProgramNeedsOneHeaderATensorAndNoAsks) {
  run_runtimes(patient(), [](Runtime& runtime) {
    Tensor a(100);
    Tensor b(200);
    const Cost cost = cost_of(runtime, 20, 200, [&](std::size_t) {
      for (const Tensor* tensor : {&a, &b}) {
        allreduce(tensor->view(), tensor->view(), {.name = tensor == &a ? "a" : "b"});
      }
    });
    expect_no_talk(cost);
    EXPECT_EQ(cost.exchanges, 400u);
    EXPECT_EQ(cost.header_bytes % 400, 0u) << "the same in every exchange: " << cost.header_bytes;
  });
}

TEST_P(CostTest, OrdersThatAlternateAreLearnt) {
  run_runtimes(patient(), [](Runtime& runtime) {
    std::vector<Tensor> tensors;
    for (int i = 0; i < 10; ++i) tensors.emplace_back(100 + i);
    const Cost cost = cost_of(runtime, 60, 200, [&](std::size_t step) {
      run_step(runtime, tensors, step / 10 % 2 == 0);
    });
    expect_no_talk(cost);
  });
}

TEST(FusionTest, TensorsThatAreReadyTogetherRunAsOne) {
  for (const bool fusion : {true, false}) {
    Setting setting{.size = 2};
    setting.config.fusion = fusion;
    setting.config.patience = 10s;
    run_runtimes(setting, [&](Runtime& runtime) {
      std::vector<Tensor> tensors;
      for (int i = 0; i < 10; ++i) tensors.emplace_back(100 + i);
      for (int step = 0; step < 20; ++step) run_step(runtime, tensors, true);
      EXPECT_EQ(runtime.world().metrics().bytes_packed > 0, fusion);
    });
  }
}

}  // namespace
}  // namespace kolo::test

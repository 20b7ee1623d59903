// The life cycle of a Runtime, from its configuration to its end.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "kolo/shared_buffer.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"

namespace kolo::test::lifecycle_test {

TEST(RuntimeTest, Topology_IsKnown) {
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

TEST(RuntimeTest, Runtime_MayBeMadeAgain) {
  for (const int nodes : {1, 3}) {
    run_ranks(3,
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

TEST(RuntimeTest, ARankThatFails_EndsOperationsOnAllRanks) {
  const std::string how = "ended with an uncaught exception: no more data";
  for (const int nodes : {1, 3}) {
    run_runtimes({.size = 3, .network = {.nodes = nodes}}, [&](Runtime& runtime) {
      ProcessSet& set = runtime.add_process_set({0, 1});
      if (runtime.rank() == 1) runtime.fail(how);
      expect_contains(text_thrown_by<PeerLostError>([] { barrier(); }), "world: rank 1 " + how);
      if (!set.included()) return;
      expect_contains(text_thrown_by<PeerLostError>([&] { barrier({.process_set = &set}); }),
                      "{0, 1}: rank 1 " + how);
    });
  }
}

// How long operations may take does not limit the start.
TEST(RuntimeTest, ShortTimeout_DoesNotEndTheStart) {
  using namespace std::chrono_literals;
  Setting setting{.size = 3, .network = {.longest_delay = 20ms, .seed = 3}};
  setting.config.timeout = 1ms;
  run_runtimes(setting, [](Runtime&) {});
}

TEST(RuntimeTest, FieldsOutOfRange_AreRejected) {
  run_ranks(2, [](FakeWorld& world) {
    Config config = test_config();
    config.fake_nodes = -1;
    const std::string text =
        text_thrown_by<InvalidArgument>([&] { Runtime runtime(options_in(world, config)); });
    expect_contains(text, "KOLO_FAKE_NODES='-1': expected 0 to");
  });
}

TEST(RuntimeTest, DifferentConfigurations_AreRejectedOnEveryRank) {
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

TEST(RuntimeTest, UnknownAlgorithm_IsRejectedAtTheStart) {
  run_ranks(2, [](FakeWorld& world) {
    Config config = test_config();
    config.algorithm = "broadcast:binomial,allreduce:rign";
    const std::string text =
        text_thrown_by<InvalidArgument>([&] { Runtime runtime(options_in(world, config)); });
    expect_contains(text, "KOLO_ALGORITHM, entry \"allreduce:rign\"");
  });
}

TEST(RuntimeTest, WithoutMpirun_TheWorldHasOneRank) {
  EXPECT_FALSE(is_initialized());
  EXPECT_THROW(rank(), InvalidArgument);
  init();
  const std::string name = Runtime::current().world().next_name("x");
  init();  // does nothing: another runtime would count names from the first again
  EXPECT_NE(Runtime::current().world().next_name("x"), name);
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

/// Every operation, under the name "x", on `set` or the current world.
std::vector<std::pair<std::string, std::function<void()>>> every_call(ProcessSet* set) {
  const auto tensor = std::make_shared<Tensor>(4);
  const TensorView view = tensor->view();
  const AllocateRows never = [](const std::vector<std::int64_t>&) -> void* { return nullptr; };
  const AllreduceOptions reduction{.name = "x", .process_set = set, .keep_alive = tensor};
  const OperationOptions options{.name = "x", .process_set = set, .keep_alive = tensor};
  return {
      {"allreduce", [=] { allreduce(view, view, reduction); }},
      {"allreduce", [=] { grouped_allreduce({{view, view}}, reduction); }},
      {"reduce_scatter", [=] { reduce_scatter(view, view, reduction); }},
      {"broadcast", [=] { broadcast(view, 0, options); }},
      {"allgather", [=] { allgather(view, never, options); }},
      {"alltoall", [=] { alltoall(view, {}, never, options); }},
      {"barrier", [=] { barrier(options); }},
      {"shared buffer", [=] { SharedBuffer(64, options); }},
      {"join", [=] { join(set); }},
  };
}

TEST(RuntimeTest, CallsBeforeTheStart_AreRejected) {
  ASSERT_FALSE(is_initialized());
  for (const auto& [name, call] : every_call(nullptr)) {
    SCOPED_TRACE(name);
    expect_contains(text_thrown_by<InvalidArgument>(call), "Kolo has not been started");
  }
  expect_contains(text_thrown_by<InvalidArgument>([] { add_process_set({0}); }),
                  "Kolo has not been started");
}

TEST(RuntimeTest, CallsAfterTheEnd_AreRejected) {
  for (const int size : {1, 3}) {
    run_runtimes(size, [&](Runtime& runtime) {
      expect_sum_works(runtime, "x");
      ProcessSet& set = runtime.add_process_set({0});
      runtime.shutdown();
      EXPECT_EQ(runtime.size(), size);
      for (ProcessSet* const used : {&runtime.world(), &set}) {
        if (!used->included()) continue;
        for (const auto& [name, call] : every_call(used)) {
          SCOPED_TRACE(name);
          const std::string text = text_thrown_by<ShutdownError>(call);
          expect_contains(text, name);
          expect_contains(text, "on process set " + used->name());
          expect_contains(text, "Kolo has been shut down on this rank");
        }
      }
      EXPECT_THROW(runtime.add_process_set({0}), ShutdownError);
      EXPECT_THROW(runtime.remove_process_set(set), ShutdownError);
    });
  }
}

TEST(RuntimeTest, End_EndsPendingWorkOnAllRanks) {
  run_ranks(3, [](FakeWorld& world) {
    for (int round = 0; round < 3; ++round) {
      std::vector<Handle> handles;
      const auto memory = std::make_shared<Tensor>(1000);
      {
        Runtime runtime(options_in(world, test_config()));
        Runtime::set_thread_current(&runtime);
        ProcessSet& set = runtime.add_process_set({0, 1, 2});
        for (ProcessSet* const used : {&runtime.world(), &set}) {
          for (int i = 0; i < 5; ++i) {  // no other rank submits these
            const std::string name = std::to_string(runtime.rank()) + "/" + std::to_string(i);
            handles.push_back(
                allreduce_async(memory->view(), memory->view(),
                                {.name = name, .process_set = used, .keep_alive = memory}));
          }
          handles.push_back(barrier_async({.name = "of all", .process_set = used}));
        }
      }
      for (std::size_t i = 0; i < handles.size(); ++i) {
        ASSERT_TRUE(handles[i].is_ready());
        if (i % 6 < 5) {
          EXPECT_THROW(handles[i].wait(), ShutdownError);
        }
      }
      handles.clear();
      EXPECT_EQ(memory.use_count(), 1) << "an operation still holds its memory";
    }
  });
}

TEST(RuntimeTest, CompletedOperations_StayReadable) {
  run_ranks(2, [](FakeWorld& world) {
    Tensor tensor(5);
    tensor.fill([&](std::size_t i) { return input_value(world.topology().rank, i); });
    Handle handle;
    {
      Runtime runtime(options_in(world, test_config()));
      Runtime::set_thread_current(&runtime);
      handle = allreduce_async(tensor.view(), tensor.view(), {.op = ReduceOp::Sum, .name = "x"});
      barrier();
      handle.wait();
    }
    handle.wait();
    EXPECT_LE(handle.started(), handle.ended());
    tensor.expect([](std::size_t i) { return input_sum(2, i); }, "x");
  });
}

}  // namespace kolo::test::lifecycle_test

// How process sets and Runtimes end: completely, from any thread, and on all ranks alike.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <latch>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"

namespace kolo::test::engine_end_test {

/// A communicator that counts how many of its kind there are.
class CountedCommunicator final : public Communicator {
 public:
  CountedCommunicator(std::unique_ptr<Communicator> inner, std::atomic<int>& count)
      : inner_(std::move(inner)), count_(count) {
    ++count_;
  }
  CountedCommunicator(const CountedCommunicator&) = delete;  // counted once
  CountedCommunicator& operator=(const CountedCommunicator&) = delete;
  ~CountedCommunicator() override { --count_; }

  Communicator& inner() { return *inner_; }
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  Transfer send(std::span<const std::byte> data, int destination, int tag) override {
    bytes_sent_ += data.size();
    return inner_->send(data, destination, tag);
  }
  Transfer receive(std::span<std::byte> data, int source, int tag) override {
    return inner_->receive(data, source, tag);
  }
  std::optional<Envelope> probe(int tag) override { return inner_->probe(tag); }
  UnderWay give_up_receives() override { return inner_->give_up_receives(); }

 private:
  bool test(std::uint64_t) override { return true; }  // transfers are the inner one's
  void abandon(std::uint64_t) noexcept override {}

  std::unique_ptr<Communicator> inner_;
  std::atomic<int>& count_;
};

/// Knows the communicators and windows of a rank that still exist, and can fail to make any.
class CountedWorld final : public comm::World {
 public:
  /// `inner` outlives it.
  explicit CountedWorld(comm::World& inner) : inner_(inner) {}

  const comm::Topology& topology() const override { return inner_.topology(); }
  std::unique_ptr<Communicator> make_communicator(std::span<const int> ranks,
                                                  int channel) override {
    if (fails) throw std::system_error(std::make_error_code(std::errc::not_enough_memory));
    return std::make_unique<CountedCommunicator>(inner_.make_communicator(ranks, channel),
                                                 communicators);
  }
  Task make_window(Communicator& communicator, int tag, std::size_t segment_bytes,
                   std::shared_ptr<SharedWindow>& window) override {
    co_await inner_.make_window(dynamic_cast<CountedCommunicator&>(communicator).inner(), tag,
                                segment_bytes, window);
    windows_.push_back(window);
  }
  std::vector<int> dead_peers() override { return inner_.dead_peers(); }
  void mark_broken() noexcept override { inner_.mark_broken(); }

  std::ptrdiff_t windows() const {
    return std::ranges::count_if(windows_, [](const auto& window) { return !window.expired(); });
  }
  std::atomic<int> communicators{0};
  bool fails = false;

 private:
  comm::World& inner_;
  std::vector<std::weak_ptr<SharedWindow>> windows_;
};

TEST(EngineEndTest, RemovedSet_HoldsNoMemoryAndNoCommunicator) {
  for (const int nodes : {1, 2}) {
    run_ranks(4,
              [](FakeWorld& fake) {
                CountedWorld world(fake);
                Runtime runtime(options_in(world, test_config()));
                Runtime::set_thread_current(&runtime);
                const int communicators = world.communicators;
                const std::ptrdiff_t windows = world.windows();
                ProcessSet& set = runtime.add_process_set({0, 1, 2, 3});
                EXPECT_GT(world.communicators, communicators);
                EXPECT_GT(world.windows(), windows);
                const std::shared_ptr<ProcessSet> kept = set.shared_from_this();
                Tensor tensor(100);
                Handle handle = allreduce_async(tensor.view(), tensor.view(),
                                                {.name = "x", .process_set = &set});
                handle.wait();
                const std::uint64_t bytes = set.metrics().bytes_sent;
                runtime.remove_process_set(set);
                EXPECT_EQ(world.communicators, communicators);
                EXPECT_EQ(world.windows(), windows);
                handle.wait();
                EXPECT_GE(set.metrics().bytes_sent, bytes);  // also counts the end itself
                EXPECT_GT(bytes, 0u);
                EXPECT_EQ(set.rank(), runtime.rank());
                barrier();  // a rank that ends closes the world, whose heartbeats end then
              },
              {.nodes = nodes});
  }
}

TEST(EngineEndTest, EndedRuntime_HoldsNoCommunicatorForHandlesThatOutliveIt) {
  run_ranks(2,
            [](FakeWorld& fake) {
              Tensor tensor(5);
              Handle handle;
              CountedWorld world(fake);
              {
                Runtime runtime(options_in(world, test_config()));
                handle = allreduce_async(tensor.view(), tensor.view(),
                                         {.name = "x", .process_set = &runtime.world()});
                handle.wait();
              }
              EXPECT_EQ(world.communicators, 0);
              handle.wait();  // calls no communicator
              EXPECT_TRUE(handle.is_ready());
            },
            {.nodes = 2});
}

TEST(EngineEndTest, LongRemovedSets_AreForgotten) {
  run_runtimes(2, [](Runtime& runtime) {
    ProcessSet& first = runtime.add_process_set({0, 1});
    const std::weak_ptr<ProcessSet> forgotten = first.shared_from_this();
    const std::shared_ptr<ProcessSet> kept = runtime.add_process_set({0, 1}).shared_from_this();
    runtime.remove_process_set(first);
    EXPECT_FALSE(forgotten.expired()) << "a mistaken use is an error at first";
    runtime.remove_process_set(*kept);
    for (int i = 0; i < 70; ++i) runtime.remove_process_set(runtime.add_process_set({0, 1}));
    EXPECT_TRUE(forgotten.expired());
    const std::string text =
        text_thrown_by<ShutdownError>([&] { barrier({.process_set = kept.get()}); });
    expect_contains(text, "process set {0, 1}: it has been removed");
  });
}

/// Calls both on threads that begin together, on every rank.
void run_together(const std::function<void()>& one, const std::function<void()>& other) {
  std::latch begin(2);
  const auto run = [&](const std::function<void()>& call) {
    begin.arrive_and_wait();
    try {
      call();
    } catch (const Error&) {  // the set or the Runtime has ended already
    }
  };
  const std::jthread beside([&] { run(other); });
  run(one);
}

TEST(EngineEndTest, RemovalBesideShutdown_EndsBoth) {
  for (int round = 0; round < 30; ++round) {
    run_runtimes(Setting{.size = 2, .network = {.nodes = 1 + round % 2}}, [](Runtime& runtime) {
      ProcessSet& set = runtime.add_process_set({0, 1});
      run_together([&] { runtime.remove_process_set(set); }, [&] { runtime.shutdown(); });
      EXPECT_THROW(barrier({.process_set = &set}), ShutdownError);
    });
  }
}

TEST(EngineEndTest, RemovalAndShutdownTwiceAtOnce_EndOnce) {
  for (int round = 0; round < 30; ++round) {
    run_runtimes(Setting{.size = 2, .network = {.nodes = 1 + round % 2}}, [](Runtime& runtime) {
      ProcessSet& set = runtime.add_process_set({0, 1});
      const auto remove = [&] { runtime.remove_process_set(set); };
      run_together(remove, remove);
      EXPECT_THROW(barrier({.process_set = &set}), ShutdownError);
      expect_sum_works(runtime, "x");
      const auto shut_down = [&] { runtime.shutdown(); };
      run_together(shut_down, shut_down);
    });
  }
}

TEST(EngineEndTest, SetThatOneRankCannotMake_IsALossOnAllRanks) {
  for (const int nodes : {1, 3}) {
    run_ranks(3,
              [](FakeWorld& fake) {
                const int rank = fake.topology().rank;
                CountedWorld world(fake);
                Runtime runtime(options_in(world, test_config()));
                world.fails = rank == 1;
                const auto add = [&] { runtime.add_process_set({0, 1}); };
                if (rank == 1) {
                  EXPECT_THROW(add(), std::system_error);
                }
                if (rank == 0) {
                  const std::string text = text_thrown_by<PeerLostError>(add);
                  expect_contains(text, "process set {0, 1} was not made: rank 1 failed");
                }
                if (rank == 2) add();  // it is no member
                const std::string text = text_thrown_by<PeerLostError>(
                    [&] { barrier({.process_set = &runtime.world()}); });
                expect_contains(text, "rank 1 failed: process set {0, 1} was not made: ");
              },
              {.nodes = nodes});
  }
}

TEST(EngineEndTest, BlockingCallsOfAFunctionInsideAnOperation_AreRefused) {
  run_runtimes(2, [](Runtime& runtime) {
    ProcessSet& set = runtime.add_process_set({0, 1});
    Tensor tensor(2);
    std::vector<float> rows(4);
    Handle pending = barrier_async({.name = "pending", .process_set = &set});
    const AllocateRows allocate = [&](const std::vector<std::int64_t>&) -> void* {
      Handle later = barrier_async({.name = "later", .process_set = &set});
      EXPECT_FALSE(later.is_ready());
      const std::pair<std::string, std::function<void()>> calls[] = {
          {"a wait on process set {0, 1}", [&] { later.wait(); }},
          {"a blocking operation", [&] { barrier({.name = "inner", .process_set = &set}); }},
          {"join", [&] { join(&set); }},
          {"metrics()", [&] { set.metrics(); }},
          {"remove_process_set()", [&] { runtime.remove_process_set(set); }},
          {"shutdown()", [&] { runtime.shutdown(); }},
      };
      for (const auto& [what, call] : calls) {
        const std::string text = text_thrown_by<InvalidArgument>(call);
        expect_contains(text, what);
        expect_contains(text, "called by a function that runs inside an operation of this set");
      }
      EXPECT_GT(runtime.world().metrics().exchanges, 0u) << "another set";
      return rows.data();
    };
    allgather(tensor.view(), allocate, {.name = "gathered", .process_set = &set});
    pending.wait();
    barrier({.name = "after", .process_set = &set});
    runtime.remove_process_set(set);
    expect_sum_works(runtime, "x");
  });
}

TEST(EngineEndTest, ExceptionThatLeavesTheRuntime_IsNamedOnTheOtherRanks) {
  for (const int nodes : {1, 3}) {
    run_ranks(3,
              [](FakeWorld& world) {
                try {
                  Runtime runtime(options_in(world, test_config()));
                  Runtime::set_thread_current(&runtime);
                  expect_sum_works(runtime, "x");
                  if (runtime.rank() == 1) throw std::out_of_range("a bad row");
                  const std::string text = text_thrown_by<ShutdownError>([] { barrier(); });
                  expect_contains(text,
                                  "rank 1 left the scope of its kolo::Runtime by an exception");
                } catch (const std::out_of_range&) {
                  EXPECT_EQ(world.topology().rank, 1);
                }
                Runtime again(options_in(world, test_config()));  // caught, so all go on
                Runtime::set_thread_current(&again);
                expect_sum_works(again, "y");
              },
              {.nodes = nodes});
  }
}

}  // namespace kolo::test::engine_end_test

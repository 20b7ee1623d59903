// Functions of the program that run inside operations, and exceptions from them.
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "ops/algorithms.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"

namespace kolo::test::callback_test {

constexpr int kThrower = 1;
constexpr const char* kText = "rank 1 failed: an exception that is no std::exception";

/// No caller waits, so the background thread must make progress.
void expect_fails_without_waiting(const std::string& name) {
  Tensor tensor(3);
  Handle handle = allreduce_async(tensor.view(), tensor.view(), {.name = name});
  while (!handle.is_ready()) std::this_thread::yield();
  expect_contains(text_thrown_by<PeerLostError>([&] { handle.wait(); }), kText);
}

TEST(CallbackTest, ThrownNonException_EndsTheOperationAtEveryWaitAndOnEveryRank) {
  run_runtimes(2, [](Runtime& runtime) {
    expect_sum_works(runtime, "before");
    Tensor tensor(4);
    std::vector<float> rows(8);
    const AllocateRows allocate = [&](const std::vector<std::int64_t>&) -> void* {
      if (runtime.rank() == kThrower) throw 42;
      return rows.data();
    };
    Handle handle = allgather_async(tensor.view(), allocate, {.name = "x"});
    for (int i = 0; i < 3; ++i) {
      const std::string text = text_thrown_by<PeerLostError>([&] { handle.wait(); });
      expect_contains(text, "'x'");
      expect_contains(text, kText);
    }
    expect_fails_without_waiting("later");
  });
}

Task algorithm_that_throws(CollectiveCall call) {
  if (call.communicator->rank() == kThrower) throw std::string("no std::exception either");
  co_await ops::allreduce_direct(call);
}

TEST(CallbackTest, Algorithm_MayThrowAnything) {
  Setting setting{.size = 2};
  setting.config.algorithm = "allreduce:own";
  run_ranks(setting.size, [&](FakeWorld& world) {
    InitOptions options = options_in(world, setting.config);
    options.algorithms = {
        {"own", Collective::AllReduce, Needs::Messages, true, algorithm_that_throws}};
    Runtime runtime(std::move(options));
    Runtime::set_thread_current(&runtime);
    Tensor tensor(4);
    const std::string text = text_thrown_by<PeerLostError>(
        [&] { allreduce(tensor.view(), tensor.view(), {.name = "x"}); });
    expect_contains(text, kText);
    expect_fails_without_waiting("later");
  });
}

}  // namespace kolo::test::callback_test

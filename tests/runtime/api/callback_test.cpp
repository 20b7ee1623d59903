// Functions of the program that run inside operations, and exceptions from them.
#include <chrono>
#include <latch>
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

using namespace std::chrono_literals;

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

/// Submits operations whose notices throw on one rank.
std::vector<Handle> submit_with_notices(Runtime& runtime, std::vector<Tensor>& tensors) {
  std::vector<Handle> handles;
  for (Tensor& tensor : tensors) {
    const std::string name = "x" + std::to_string(handles.size());
    handles.push_back(allreduce_async(tensor.view(), tensor.view(), {.name = name}));
    if (runtime.rank() == kThrower) handles.back().notify([] { throw 42; });
  }
  return handles;
}

std::vector<Tensor> three_tensors() {
  std::vector<Tensor> tensors;
  while (tensors.size() < 3) tensors.emplace_back(3);
  return tensors;
}

TEST(CallbackTest, ThrowingNotice_EndsTheSetAndEveryOperationOfItsBatch) {
  std::latch is_submitted(1);
  run_runtimes(2, [&](Runtime& runtime) {
    expect_sum_works(runtime, "before");
    std::vector<Tensor> tensors = three_tensors();
    if (runtime.rank() != kThrower) is_submitted.wait();
    std::vector<Handle> handles = submit_with_notices(runtime, tensors);
    if (runtime.rank() == kThrower) is_submitted.count_down();
    for (Handle& handle : handles) {
      try {
        EXPECT_TRUE(handle.wait_for(20s));
      } catch (const PeerLostError& lost) {  // its batch came later
        expect_contains(lost.what(), kText);
      }
    }
    expect_fails_without_waiting("later");
  });
}

TEST(CallbackTest, ThrowingNotice_EndsEveryOperationAfterALoss) {
  std::latch is_submitted(1);
  run_runtimes(2, [&](Runtime& runtime) {
    expect_sum_works(runtime, "before");
    if (runtime.rank() != kThrower) {
      is_submitted.wait();
      return runtime.fail("gives up");
    }
    std::vector<Tensor> tensors = three_tensors();
    std::vector<Handle> handles = submit_with_notices(runtime, tensors);
    is_submitted.count_down();
    for (Handle& handle : handles) {
      expect_contains(text_thrown_by<PeerLostError>([&] { EXPECT_TRUE(handle.wait_for(20s)); }),
                      "rank 0 gives up");
    }
  });
}

}  // namespace kolo::test::callback_test

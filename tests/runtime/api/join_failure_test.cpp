// Failures of a join, and of operations while some ranks have joined.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "kolo/shared_buffer.hpp"
#include "runtime/deaths.hpp"
#include "runtime/every_world.hpp"
#include "runtime/join_expectations.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"

namespace kolo::test::join_failure_test {

using namespace std::chrono_literals;
using namespace joins;

class JoinFailureTest : public testing::TestWithParam<Setting> {};

INSTANTIATE_TEST_SUITE_P(, JoinFailureTest, testing::ValuesIn(three_ranks()),
                         [](const auto& setting) { return setting.param.name; });

TEST_P(JoinFailureTest, SecondJoinOnOneRank_IsRejected) {
  std::atomic<int> refused{0};
  run_runtimes(GetParam(), [&](Runtime& runtime) {
    ProcessSet& world = runtime.world();
    const auto try_to_join = [&] {
      try {
        join(&world);
      } catch (const InvalidArgument& error) {
        expect_contains(error.what(), "join on process set world");
        ++refused;
      }
    };
    if (runtime.rank() == 1) {
      std::thread other(try_to_join);
      try_to_join();
      other.join();
    } else {
      while (refused == 0) std::this_thread::sleep_for(1ms);
      join();
    }
    expect_sum_works(runtime, "x");
  });
  EXPECT_EQ(refused, 1);
}

TEST_P(JoinFailureTest, MismatchOfTheOthers_IsFoundAndTheJoinContinues) {
  run_runtimes(GetParam(), [](Runtime& runtime) {
    expect_sum_works(runtime, "x");
    if (runtime.rank() != 1) {
      const Tensor tensor(4 + runtime.rank());
      const std::string text = text_thrown_by<MismatchError>(
          [&] { allreduce(tensor.view(), tensor.view(), {.name = "x"}); });
      expect_contains(text, "[4] on rank 0, [6] on rank 2");
      barrier({.name = "b"});
    }
    join();
    expect_sum_works(runtime, "x");  // the error was no use of the joined rank's
  });
}

TEST_P(JoinFailureTest, Timeout_NamesNoJoinedRank) {
  std::latch given_up(1);
  run_runtimes(GetParam(), [&](Runtime& runtime) {
    expect_sum_works(runtime, "x");
    if (runtime.rank() != 1) wait_until_joined("rank 1");
    if (runtime.rank() == 0) {
      Tensor tensor(5);
      const std::string text = text_thrown_by<TimeoutError>([&] {
        allreduce(tensor.view(), tensor.view(),
                  {.op = ReduceOp::Sum, .name = "x", .timeout = 500ms});
      });
      given_up.count_down();
      expect_contains(text, "the deadline passed on rank 0 while rank 2 had not submitted it");
    }
    if (runtime.rank() == 2) {
      given_up.wait();
      Tensor tensor(5);
      EXPECT_THROW(allreduce(tensor.view(), tensor.view(), {.op = ReduceOp::Sum, .name = "x"}),
                   TimeoutError);
    }
    join();
    expect_sum_works(runtime, "x");
  });
}

TEST_P(JoinFailureTest, RemovalOfASetThatARankHasJoined_FailsAndTheJoinContinues) {
  run_runtimes(GetParam(), [](Runtime& runtime) {
    ProcessSet& set = runtime.add_process_set({1, 2});
    const auto remove = [&] { runtime.remove_process_set(set); };
    if (runtime.rank() == 1) barrier({.name = "runs without rank 2", .process_set = &set});
    if (runtime.rank() == 2) join(&set);
    expect_contains(text_thrown_by<InvalidArgument>(remove),
                    "rank 1: process set {1, 2} has been joined by rank 2. Call join()");
    if (runtime.rank() == 1) join(&set);
    remove();
  });
}

TEST_P(JoinFailureTest, Shutdown_EndsTheJoin) {
  run_runtimes(GetParam(), [](Runtime& runtime) {
    expect_sum_works(runtime, "x");
    if (runtime.rank() == 2) {
      wait_until_joined("all others");
      runtime.shutdown();
    }
    const std::string text = text_thrown_by<ShutdownError>([] { join(); });
    expect_contains(text, "join on process set world");
    if (runtime.rank() != 2) expect_contains(text, "rank 2 shut Kolo down");
    EXPECT_THROW(join(), ShutdownError);
  });
}

TEST_P(JoinFailureTest, Death_EndsTheJoin) {
  run_with_death(
      GetParam(), 1, [](Runtime& runtime) { expect_sum_works(runtime, "x"); },
      [](FakeWorld&) {
        const std::string text = text_thrown_by<PeerLostError>([] { join(); });
        expect_contains(text, "join on process set world: rank 1 died");
      },
      [] { wait_until_joined("all others"); });
}

}  // namespace kolo::test::join_failure_test

// Errors when ranks are late or leave.
#include <chrono>
#include <cstddef>
#include <latch>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "insight/insight.hpp"
#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"

namespace kolo::test::timeout_test {

using namespace std::chrono_literals;

class TimeoutTest : public testing::TestWithParam<Setting> {};

INSTANTIATE_TEST_SUITE_P(
    , TimeoutTest,
    testing::Values(Setting{.name = "Shared", .size = 3},
                    Setting{.name = "Messages",
                            .size = 3,
                            .network = {.nodes = 3, .longest_delay = 100us, .rendezvous = true}}),
    [](const auto& setting) { return setting.param.name; });

TEST_P(TimeoutTest, Timeout_IsThrownOnAllRanksTheLateOneToo) {
  for (const int late : {2, 0}) {
    for (const bool is_known : {false, true}) {
      std::latch given_up(2);
      run_runtimes(GetParam(), [&](Runtime& runtime) {
        if (is_known) expect_sum_works(runtime, "x");
        Tensor tensor(5);
        AllreduceOptions options{.op = ReduceOp::Sum, .name = "x"};
        if (runtime.rank() != late) {
          options.timeout = 500ms;  // both must submit it by then
        } else {
          given_up.wait();
        }
        Handle handle = allreduce_async(tensor.view(), tensor.view(), options);
        const std::string text = text_thrown_by<TimeoutError>([&] { handle.wait(); });
        if (runtime.rank() != late) given_up.count_down();
        expect_contains(text, "'x'");
        expect_contains(text, "the deadline passed on ");
        expect_contains(text, "while rank " + std::to_string(late) + " had not submitted it");
        expect_sum_works(runtime, "x");
        expect_sum_works(runtime, "y");
      });
    }
  }
}

TEST_P(TimeoutTest, Timeout_SaysInWhichStepTheLateRankIs) {
  std::latch given_up(2);
  run_runtimes(GetParam(), [&](Runtime& runtime) {
    Tensor tensor(5);
    AllreduceOptions options{.op = ReduceOp::Sum, .name = "x"};
    if (runtime.rank() == 1) {
      insight::Recorder& recorder = runtime.insight().recorder();
      for (int step = 0; step < 3; ++step) {
        recorder.enter(insight::Phase::Backward);
        recorder.enter(insight::Phase::Step);
        recorder.enter(insight::Phase::Forward);
      }
      recorder.enter(insight::Phase::Backward);
      given_up.wait();
    } else {
      options.timeout = 500ms;
    }
    Handle handle = allreduce_async(tensor.view(), tensor.view(), options);
    const std::string text = text_thrown_by<TimeoutError>([&] { handle.wait(); });
    if (runtime.rank() != 1) given_up.count_down();
    expect_contains(text, "had not submitted it. Rank 1 is in step 4: backward, for ");
  });
}

TEST_P(TimeoutTest, DefaultTimeout_IsTheConfiguredOne) {
  Setting setting = GetParam();
  setting.config.timeout = 2s;  // startup must not take that long
  std::latch given_up(2);
  run_runtimes(setting, [&](Runtime& runtime) {
    if (runtime.rank() == 1) return given_up.wait();
    Tensor tensor(5);
    EXPECT_THROW(broadcast(tensor.view(), 0, {.name = "x"}), TimeoutError);
    given_up.count_down();
  });
}

TEST_P(TimeoutTest, StallOnAProcessSet_NamesWorldRanks) {
  Setting setting = GetParam();
  setting.config.stall_warn = 50ms;
  setting.config.log_level = "warn";
  testing::internal::CaptureStderr();
  run_runtimes(setting, [&](Runtime& runtime) {
    ProcessSet& set = runtime.add_process_set({1, 2});
    if (runtime.rank() == 2) std::this_thread::sleep_for(1s);
    if (set.included()) expect_sum_works(set, "slow one");
  });
  const std::string text = testing::internal::GetCapturedStderr();
  expect_contains(text, "'slow one' on process set {1, 2}: rank 1 waited for longer");
  expect_contains(text, "rank 2 did not submit it yet");
}

TEST_P(TimeoutTest, ShutdownElsewhere_EndsPendingWork) {
  for (const int leaving : {0, 2}) {
    run_runtimes(GetParam(), [&](Runtime& runtime) {
      expect_sum_works(runtime, "before");
      if (runtime.rank() == leaving) {
        runtime.shutdown();
        runtime.shutdown();  // does nothing
      }
      Tensor tensor(5);
      for (int attempt = 0; attempt < 3; ++attempt) {
        const std::string text = text_thrown_by<ShutdownError>(
            [&] { allreduce(tensor.view(), tensor.view(), {.name = "x"}); });
        expect_contains(text, "'x'");
        if (runtime.rank() != leaving) {
          expect_contains(text, "rank " + std::to_string(leaving) + " shut Kolo down");
        } else {
          expect_contains(text, "on this rank");
        }
      }
    });
  }
}

}  // namespace kolo::test::timeout_test

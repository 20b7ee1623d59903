// An engine whose threads make progress steps at unusual moments.
#include "runtime/engine/engine.hpp"

#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "runtime/engine/backoff.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"

namespace kolo::test::engine_test {

TEST(EngineTest, RanksThatShareCores_DoNotSpin) {
  const Config config;
  EXPECT_GT(config.tuning.spin.count(), 0);
  EXPECT_EQ(runtime::spin_of(config, {.shares_cores = false}, false), config.tuning.spin);
  EXPECT_GT(runtime::spin_of(config, {.shares_cores = false}, true), config.tuning.spin);
  for (const bool is_by_order : {false, true}) {
    EXPECT_EQ(runtime::spin_of(config, {.shares_cores = true}, is_by_order).count(), 0);
  }
}

Setting by_messages() { return {.name = "Messages", .size = 2, .network = {.nodes = 2}}; }

// A waiting thread may be about to begin a progress step when another thread ends the Runtime, and
// with it the configuration, the world and MPI. AddressSanitizer reports a step that comes too
// late.
TEST(EngineTest, ProgressStepAfterShutdown_TouchesNothing) {
  std::latch all_have_ended(2);
  run_ranks(2,
            [&](FakeWorld& world) {
              std::shared_ptr<runtime::Engine> engine;
              {
                Runtime runtime(options_in(world, test_config()));
                Runtime::set_thread_current(&runtime);
                expect_sum_works(runtime, "x");
                engine = runtime.world().engine();
              }
              all_have_ended.arrive_and_wait();
              EXPECT_FALSE(engine->try_progress());
            },
            {.nodes = 2});
}

// Runs `at_work` on rank 0 during a progress step, and returns when both ranks have gathered.
void gather(Runtime& runtime, const std::function<void()>& at_work) {
  Tensor tensor(2);
  std::vector<float> rows(4);
  const AllocateRows allocate = [&](const std::vector<std::int64_t>&) -> void* {
    if (runtime.rank() == 0) at_work();
    return rows.data();
  };
  allgather(tensor.view(), allocate, {.name = "gathered"});
}

TEST(FinalMessageTest, StepOfAnotherThread_PreventsTheFinalMessage) {
  run_runtimes(by_messages(), [](Runtime& runtime) {
    std::latch is_in_step(1);
    std::latch may_continue(1);
    std::thread speaker;
    if (runtime.rank() == 0) {
      speaker = std::thread([&] {
        is_in_step.wait();
        runtime.world().engine()->publish_end("ended");
        may_continue.count_down();
      });
    }
    gather(runtime, [&] {
      is_in_step.count_down();
      may_continue.wait();
    });
    if (speaker.joinable()) speaker.join();
    expect_sum_works(runtime, "after");  // no final message was sent
  });
}

TEST(FinalMessageTest, ThreadInTheStep_SendsTheFinalMessage) {
  run_runtimes(by_messages(), [](Runtime& runtime) {
    const auto until_lost = [&] {
      for (;;) gather(runtime, [&] { runtime.world().engine()->publish_end("ended"); });
    };
    const std::string text = text_thrown_by<PeerLostError>(until_lost);
    expect_contains(text, "rank 0 ended");
  });
}

}  // namespace kolo::test::engine_test

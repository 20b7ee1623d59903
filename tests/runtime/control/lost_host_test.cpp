// Errors when a host vanishes while no rank waits for it.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "runtime/deaths.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"
#include "support/becomes_true.hpp"

namespace kolo::test::lost_host_test {

using namespace std::chrono_literals;

constexpr auto kLimit = 2s;  // under load a rank may get no CPU for 1 s

/// Two ranks on each of two nodes.
Setting two_hosts() {
  Setting setting{.size = 4, .network = {.nodes = 2, .longest_delay = 100us, .rendezvous = true}};
  setting.config.lost_after = kLimit;
  return setting;
}

void expect_right_sum(Runtime& runtime, const std::string& name) {
  Tensor tensor(300);
  tensor.fill([&](std::size_t i) { return input_value(runtime.rank(), i, 0); });
  allreduce(tensor.view(), tensor.view(), {.op = ReduceOp::Sum, .name = name});
  tensor.expect([&](std::size_t i) { return input_sum(runtime.size(), i, 0); }, name);
}

/// Runs `body` on every rank after all have exchanged messages.
void run_warm(const Setting& setting, const std::function<void(FakeWorld&, Runtime&)>& body) {
  std::latch have_warmed_up(setting.size);
  run_ranks(
      setting.size,
      [&](FakeWorld& world) {
        Runtime runtime(options_in(world, setting.config));
        Runtime::set_thread_current(&runtime);
        expect_right_sum(runtime, "before");
        have_warmed_up.arrive_and_wait();
        body(world, runtime);
      },
      setting.network);
}

TEST(LostHostTest, IdleRanks_LearnItOnBothSidesOfTheCut) {
  run_warm(two_hosts(), [](FakeWorld& world, Runtime& runtime) {
    const bool is_on_lost_host = runtime.rank() >= 2;
    if (is_on_lost_host) world.unplug();
    EXPECT_TRUE(becomes_true([&] { return world.is_broken(); }, 30 * kLimit));
    const std::string text = text_thrown_by<PeerLostError>([&] { expect_right_sum(runtime, "x"); });
    expect_contains(text, "'x'");
    expect_contains(text, is_on_lost_host
                              ? "rank 0 cannot be reached: nothing has come from the host of "
                                "ranks 0 and 1 for 2 s (KOLO_LOST_AFTER)"
                              : "rank 2 cannot be reached: nothing has come from the host of "
                                "ranks 2 and 3 for 2 s (KOLO_LOST_AFTER)");
  });
}

TEST(LostHostTest, HostThatComesBackInTime_WorksOn) {
  Setting setting = two_hosts();
  setting.config.lost_after = 4s;  // long enough for a machine under load
  run_warm(setting, [](FakeWorld& world, Runtime& runtime) {
    for (int round = 0; round < 2; ++round) {
      if (runtime.rank() >= 2) world.unplug();
      std::this_thread::sleep_for(1500ms);
      if (runtime.rank() >= 2) world.plug_in();
      expect_right_sum(runtime, "x");
    }
    EXPECT_FALSE(world.is_broken());
  });
}

TEST(LostHostTest, IdleHosts_AreNotLost) {
  run_runtimes(two_hosts(), [](Runtime& runtime) {
    std::this_thread::sleep_for(4 * kLimit);
    expect_right_sum(runtime, "x");
  });
}

TEST(LostHostTest, FunctionOfTheProgramThatTakesLong_IsNoLoss) {
  for (const int busy : {0, 2}) {  // the lowest ranks of the hosts, which send heartbeats
    run_warm(two_hosts(), [&](FakeWorld& world, Runtime& runtime) {
      Tensor tensor(2);
      std::vector<float> rows(8);
      const AllocateRows allocate = [&](const std::vector<std::int64_t>&) -> void* {
        if (runtime.rank() == busy) std::this_thread::sleep_for(4 * kLimit);
        return rows.data();
      };
      allgather(tensor.view(), allocate, {.name = "gathered"});
      expect_right_sum(runtime, "x");
      EXPECT_FALSE(world.is_broken());
    });
  }
}

/// A rank that ends because of a loss loses its unsent messages.
TEST(LostHostTest, Death_IsAnnouncedBeforeOperationsFail) {
  using Clock = std::chrono::steady_clock;
  std::atomic<Clock::time_point> died_at;
  run_with_death(
      two_hosts(), 3, [](Runtime& runtime) { expect_right_sum(runtime, "before"); },
      [&](FakeWorld&) {
        Tensor tensor(5);
        const std::string text = text_thrown_by<PeerLostError>(
            [&] { allreduce(tensor.view(), tensor.view(), {.name = "x"}); });
        expect_contains(text, "rank 3 died");
        EXPECT_GE(Clock::now() - died_at.load(), 200ms);
      },
      [&] { died_at = Clock::now(); });
}

}  // namespace kolo::test::lost_host_test

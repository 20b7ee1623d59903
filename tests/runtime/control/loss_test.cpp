// Errors when a rank dies.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "runtime/deaths.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"
#include "support/fake_world/fault_world.hpp"

namespace kolo::test::loss_test {

using namespace std::chrono_literals;

class LossTest : public testing::TestWithParam<Setting> {};

INSTANTIATE_TEST_SUITE_P(, LossTest, testing::ValuesIn(three_ranks()),
                         [](const auto& setting) { return setting.param.name; });

TEST_P(LossTest, Death_EndsPendingWorkOnAllSurvivors) {
  for (const int victim : {0, 2}) {
    run_with_death(
        GetParam(), victim, [](Runtime& runtime) { expect_sum_works(runtime, "before"); },
        [&](FakeWorld& world) {
          Tensor tensor(5);
          const auto expect_loss_error = [&](const std::string& name) {
            const std::string text = text_thrown_by<PeerLostError>(
                [&] { allreduce(tensor.view(), tensor.view(), {.name = name}); });
            expect_contains(text, "'" + name + "'");
            expect_contains(text, "rank " + std::to_string(victim) + " died");
          };
          expect_loss_error("x");
          expect_loss_error("later");
          EXPECT_TRUE(world.is_broken());
        });
  }
}

// The channel of the world's data.
constexpr int kDataChannel = 0;
constexpr int kControlChannel = 1;

constexpr std::size_t kSteps = 32;  // each sends a control message or more: more than are skipped

TEST_P(LossTest, DeathBeforeTheRuntime_IsDetected) {
  run_ranks(
      GetParam().size,
      [&](FakeWorld& world) {
        if (world.topology().rank == 1) {
          world.die();
          return;
        }
        const std::string text = text_thrown_by<PeerLostError>(
            [&] { Runtime runtime(options_in(world, GetParam().config)); });
        expect_contains(text, "rank 1 died");
        EXPECT_TRUE(world.is_broken());
      },
      GetParam().network);
}

/// Each step's result is right until one fails; then all later ones fail.
void run_until_lost(const Runtime& runtime) {
  bool is_lost = false;
  for (std::size_t step = 0; step < kSteps; ++step) {
    Tensor tensor(300);
    tensor.fill([&](std::size_t i) { return input_value(runtime.rank(), i, step); });
    const std::string what = "step " + std::to_string(step);
    try {
      allreduce(tensor.view(), tensor.view(), {.op = ReduceOp::Sum, .name = "x"});
      EXPECT_FALSE(is_lost) << what << " ran after a loss";
      tensor.expect([&](std::size_t i) { return input_sum(runtime.size(), i, step); }, what);
    } catch (const PeerLostError& error) {
      is_lost = true;
      expect_contains(error.what(), "'x'");
    }
  }
}

/// The program of the rank that dies; its own results afterwards do not matter.
void run_until_dead(Runtime& runtime, const std::atomic<bool>& is_dead) {
  std::vector<Tensor> tensors;
  for (std::size_t step = 0; step < kSteps; ++step) {
    tensors.emplace_back(300);
    tensors[step].fill([&](std::size_t i) { return input_value(runtime.rank(), i, step); });
  }
  for (const Tensor& tensor : tensors) {
    Handle handle =
        allreduce_async(tensor.view(), tensor.view(), {.op = ReduceOp::Sum, .name = "x"});
    while (!is_dead && !handle.wait_for(1ms)) {
    }
    if (is_dead) break;
  }
  runtime.shutdown();  // before its memory is freed
}

void expect_survivors_recover(int victim, const Fault& death) {
  Setting setting{.size = 3, .network = {.nodes = 3}};
  setting.config.lost_after = 300ms;  // the victim receives nothing, and gives up by itself
  setting.config.tuning.segment_bytes = 256;
  std::atomic<bool> is_dead{false};
  run_ranks(
      setting.size,
      [&](FakeWorld& world) {
        const std::shared_ptr<FakeWorld> inner(std::shared_ptr<void>(), &world);
        const bool is_victim = world.topology().rank == victim;
        FaultWorld faulty(inner, is_victim ? std::vector{death} : std::vector<Fault>{}, [&] {
          world.die();
          is_dead = true;
        });
        try {
          Runtime runtime(options_in(faulty, setting.config));
          Runtime::set_thread_current(&runtime);
          if (is_victim) {
            run_until_dead(runtime, is_dead);
          } else {
            run_until_lost(runtime);
          }
        } catch (const PeerLostError& error) {  // the victim died before this rank had started
          expect_contains(error.what(), "rank " + std::to_string(victim) + " died");
        }
      },
      setting.network);
  EXPECT_TRUE(is_dead) << "the victim never sent the message at which it was to die";
}

TEST(LossAtAnyMessageTest, LostDataMessage_LeavesTheRightValueOrAnError) {
  for (std::uint64_t skip = 0; skip < 40; skip += 3) {
    SCOPED_TRACE("message " + std::to_string(skip));
    const int victim = static_cast<int>(skip / 3 % 3);
    expect_survivors_recover(victim,
                             {.kind = Fault::Kind::Die, .channel = kDataChannel, .skip = skip});
  }
}

TEST(LossAtAnyMessageTest, LostControlMessage_LeavesTheRightValueOrAnError) {
  for (std::uint64_t skip = 0; skip < 30; skip += 2) {
    SCOPED_TRACE("message " + std::to_string(skip));
    const int victim = static_cast<int>(skip / 2 % 3);
    expect_survivors_recover(victim, {.kind = Fault::Kind::Die,
                                      .channel = kControlChannel,
                                      .tag = Communicator::kTagCount - 1,
                                      .skip = skip});
  }
}

/// A rank that has left is still waiting for the others, which may die meanwhile.
TEST(LossAtShutdownTest, DeathAtAnyMoment_EndsTheShutdownOfOthers) {
  Config config = test_config();
  config.timeout = config.lost_after =
      24h;  // who waits for the dead runs into the limit of the test
  std::atomic<bool> is_dead{true};
  for (std::uint64_t skip = 0; is_dead; ++skip) {
    SCOPED_TRACE("message " + std::to_string(skip));
    is_dead = false;
    run_ranks(2,
              [&](FakeWorld& world) {
                const std::shared_ptr<FakeWorld> inner(std::shared_ptr<void>(), &world);
                const Fault death{.kind = Fault::Kind::Die,
                                  .channel = kControlChannel,
                                  .tag = Communicator::kTagCount - 1,
                                  .skip = skip};
                const bool is_victim = world.topology().rank == 1;
                FaultWorld faulty(inner, is_victim ? std::vector{death} : std::vector<Fault>{},
                                  [&] {
                                    world.die();
                                    is_dead = true;
                                  });
                Runtime runtime(options_in(faulty, config));
                runtime.shutdown();
                world.die();  // ends the wait of the victim, which receives nothing
              },
              {.has_shared_memory = false});
    ASSERT_LT(skip, 100u);
  }
}

}  // namespace kolo::test::loss_test

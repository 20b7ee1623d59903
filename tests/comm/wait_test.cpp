#include "comm/wait.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "kolo/error.hpp"
#include "support/errors.hpp"
#include "support/fake_world/fake_world.hpp"

namespace kolo::comm::wait_test {

using namespace std::chrono_literals;

struct Flag {
  std::atomic<bool>* flag;
  bool ready() const { return flag->load(); }
};

Task until(std::atomic<bool>& flag, bool& has_ended) {
  for (int i = 0; i < 10; ++i) co_await yield();
  co_await Flag{&flag};
  has_ended = true;
}

Task fail() {
  co_await yield();
  throw std::runtime_error("from the task");
}

const std::array<int, 3> kRanks{0, 1, 2};

NeededRanks all_of(World& world) { return {world, kRanks, "all waited"}; }

TEST(WaitTest, Task_RunsToItsEnd) {
  std::atomic<bool> flag{true};
  bool has_ended = false;
  wait(until(flag, has_ended), Deadline::never());
  EXPECT_TRUE(has_ended);
}

TEST(WaitTest, EventOfAnotherThread_IsSeen) {
  std::atomic<bool> flag{false};
  bool has_ended = false;
  std::thread other([&] {
    std::this_thread::sleep_for(5ms);
    flag = true;
  });
  wait(until(flag, has_ended), Deadline::after(1min));
  other.join();
  EXPECT_TRUE(has_ended);
}

TEST(WaitTest, PassedDeadline_EndsTheWait) {
  std::atomic<bool> flag{false};
  bool has_ended = false;
  const std::string text = test::text_thrown_by<TimeoutError>(
      [&] { wait(until(flag, has_ended), Deadline::after(10ms)); });
  test::expect_contains(text, "KOLO_TIMEOUT");
  EXPECT_FALSE(has_ended);
}

Task advance_forever() {
  for (;;) co_await yield();
}

TEST(WaitTest, PassedDeadline_EndsTheWaitForATaskThatAdvances) {
  EXPECT_THROW(wait(advance_forever(), Deadline::after(10ms)), TimeoutError);
}

TEST(WaitTest, DeathOfARank_EndsTheWait) {
  test::run_ranks(3, [](test::FakeWorld& world) {
    if (world.topology().rank == 1) {
      std::this_thread::sleep_for(5ms);
      world.die();
      return;
    }
    std::atomic<bool> flag{false};
    bool has_ended = false;
    const std::string text = test::text_thrown_by<PeerLostError>(
        [&] { wait(until(flag, has_ended), Deadline::never(), all_of(world)); });
    EXPECT_EQ(text, "rank 1 died while all waited: the process has ended");
    EXPECT_TRUE(world.is_broken());
    EXPECT_FALSE(has_ended);
  });
}

TEST(WaitTest, DeathOfARankThatIsNotNeeded_IsNoError) {
  test::run_ranks(3, [](test::FakeWorld& world) {
    if (world.topology().rank == 1) {
      world.die();
      return;
    }
    while (world.dead_peers().empty()) std::this_thread::yield();
    std::atomic<bool> flag{false};
    bool has_ended = false;
    const std::array<int, 2> needed{0, 2};
    EXPECT_THROW(wait(until(flag, has_ended), Deadline::after(20ms), {world, needed, "two waited"}),
                 TimeoutError);
  });
}

TEST(WaitTest, LossThatTheCheckFinds_EndsTheWait) {
  test::run_ranks(1, [](test::FakeWorld& world) {
    std::atomic<bool> flag{false};
    bool has_ended = false;
    NeededRanks needed = all_of(world);
    needed.check = [] { throw PeerLostError("of a host"); };
    EXPECT_EQ(test::text_thrown_by<PeerLostError>(
                  [&] { wait(until(flag, has_ended), Deadline::never(), needed); }),
              "of a host");
    EXPECT_TRUE(world.is_broken());
  });
}

TEST(WaitTest, AbandonedTaskOfAllRanks_MarksTheWorldBroken) {
  test::run_ranks(1, [](test::FakeWorld& world) {
    std::atomic<bool> flag{false};
    bool has_ended = false;
    EXPECT_THROW(wait(until(flag, has_ended), Deadline::after(5ms), all_of(world)), TimeoutError);
    EXPECT_TRUE(world.is_broken());
  });
}

TEST(WaitTest, ExceptionOfTheTask_IsPassedOn) {
  EXPECT_EQ(test::text_thrown_by<std::runtime_error>([] { wait(fail(), Deadline::never()); }),
            "from the task");
}

TEST(WaitTest, CompletedTasks_LeaveTheWorldIntact) {
  test::run_ranks(1, [](test::FakeWorld& world) {
    std::atomic<bool> flag{true};
    bool has_ended = false;
    wait(until(flag, has_ended), Deadline::never(), all_of(world));
    EXPECT_TRUE(has_ended);
    EXPECT_EQ(test::text_thrown_by<std::runtime_error>(
                  [&] { wait(fail(), Deadline::never(), all_of(world)); }),
              "from the task");
    EXPECT_FALSE(world.is_broken());
  });
}

}  // namespace kolo::comm::wait_test

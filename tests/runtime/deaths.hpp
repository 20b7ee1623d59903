#pragma once

#include <chrono>
#include <functional>
#include <latch>
#include <optional>

#include "runtime/runtimes.hpp"

namespace kolo::test {

/// Counts a latch down at the end of a scope, also after an exception: nobody waits forever.
class CountDown {
 public:
  explicit CountDown(std::latch& latch) : latch_(latch) {}
  CountDown(const CountDown&) = delete;
  CountDown& operator=(const CountDown&) = delete;
  ~CountDown() { latch_.count_down(); }

 private:
  std::latch& latch_;
};

/// Runs ranks, one of which dies: `victim`, after its own `last`, and after all ranks have finished
/// `before`, so that its death cannot make that fail. The others run `survive`.
inline void run_with_death(
    Setting setting, int victim, const std::function<void(Runtime&)>& before,
    const std::function<void(FakeWorld&)>& survive, const std::function<void()>& last = [] {}) {
  setting.config.lost_after = std::chrono::milliseconds(300);  // the victim receives nothing
  std::latch all_are_ready(setting.size);
  std::latch survivors_know(setting.size - 1);
  run_ranks(
      setting.size,
      [&](FakeWorld& world) {
        Runtime runtime(options_in(world, setting.config));
        Runtime::set_thread_current(&runtime);
        std::optional<CountDown> knows;
        if (runtime.rank() != victim) knows.emplace(survivors_know);
        {
          const CountDown is_ready(all_are_ready);
          before(runtime);
        }
        all_are_ready.wait();
        if (runtime.rank() != victim) {
          survive(world);
          return;
        }
        last();
        world.die();
        survivors_know.wait();  // in shared memory it could still send its final message
      },
      setting.network);
}

}  // namespace kolo::test

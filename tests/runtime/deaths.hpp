#pragma once

#include <chrono>
#include <functional>
#include <latch>

#include "runtime/runtimes.hpp"

namespace kolo::test {

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
        before(runtime);
        all_are_ready.arrive_and_wait();
        if (runtime.rank() != victim) {
          survive(world);
          survivors_know.count_down();
          return;
        }
        last();
        world.die();
        survivors_know.wait();  // in shared memory it could still send its final message
      },
      setting.network);
}

}  // namespace kolo::test

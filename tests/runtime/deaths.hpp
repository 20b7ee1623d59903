#pragma once

#include <chrono>
#include <functional>
#include <latch>

#include "runtime/runtimes.hpp"

namespace kolo::test {

/// Runs ranks of which `victim` dies after all have finished `before`, which its death could fail
/// otherwise, and after its own `last`. The others run `survive`.
inline void run_with_death(
    Setting setting, int victim, const std::function<void(Runtime&)>& before,
    const std::function<void(FakeWorld&)>& survive, const std::function<void()>& last = [] {}) {
  setting.config.lost_after = std::chrono::milliseconds(300);  // the victim hears nothing
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
        survivors_know.wait();  // in shared memory it could still say goodbye
      },
      setting.network);
}

}  // namespace kolo::test

#include "comm/wait.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/rank_list.hpp"
#include "kolo/error.hpp"

namespace kolo::comm {
namespace {

/// Calls `look` whenever there is nothing to do.
template <class Look>
void run(Task task, Deadline deadline, Look look) {
  constexpr auto kShortest = std::chrono::microseconds(1);
  constexpr auto kLongest = std::chrono::microseconds(1000);
  auto pause = kShortest;
  for (;;) {
    const Progress progress = task.poll();
    if (progress == Progress::Done) return;
    if (progress == Progress::Advanced) {
      pause = kShortest;
      continue;
    }
    if (deadline.is_over()) {
      throw TimeoutError(
          "a collective step took longer than KOLO_TIMEOUT: some rank did not take "
          "part. Start Kolo on every rank, or raise the timeout.");
    }
    look();
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongest);
  }
}

}  // namespace

void wait(Task task, Deadline deadline) {
  run(std::move(task), deadline, [] {});
}

void wait(Task task, Deadline deadline, World& world) {
  bool has_death_been_seen = false;
  try {
    run(std::move(task), deadline, [&] {
      std::vector<int> dead = world.dead_peers();
      // Its last messages may have come since they were looked for: not before another look.
      if (!std::exchange(has_death_been_seen, !dead.empty())) return;
      std::sort(dead.begin(), dead.end());  // those that died first may have taken others along
      throw PeerLostError(list_ranks(dead) + " died while Kolo started: the process has ended");
    });
  } catch (const TimeoutError&) {
    world.mark_broken();
    throw;
  } catch (const PeerLostError&) {
    world.mark_broken();
    throw;
  }
}

}  // namespace kolo::comm

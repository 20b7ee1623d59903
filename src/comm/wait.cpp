#include "comm/wait.hpp"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "kolo/error.hpp"

namespace kolo::comm {
namespace {

/// Calls `check` whenever there is nothing to do.
template <class Check>
void run(Task task, Deadline deadline, Check check) {
  constexpr auto kShortest = std::chrono::microseconds(1);
  constexpr auto kLongest = std::chrono::microseconds(1000);
  auto pause = kShortest;
  for (;;) {
    const Progress progress = task.poll();
    if (progress == Progress::Done) return;
    if (progress == Progress::Advanced) pause = kShortest;
    if (deadline.has_passed()) {
      throw TimeoutError(
          "a collective step took too long: some rank did not take part. Start Kolo on every rank, "
          "or raise KOLO_START_TIMEOUT and KOLO_TIMEOUT.");
    }
    if (progress == Progress::Advanced) continue;
    check();
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongest);
  }
}

}  // namespace

void wait(Task task, Deadline deadline) {
  run(std::move(task), deadline, [] {});
}

void wait(Task task, Deadline deadline, const NeededRanks& needed) {
  World& world = needed.world;
  bool was_death_seen = false;
  try {
    run(std::move(task), deadline, [&] {
      needed.check();
      std::vector<int> dead = world.dead_peers();
      std::erase_if(dead, [&](int rank) {
        return std::ranges::find(needed.ranks, rank) == needed.ranks.end();
      });
      // Messages that a rank sent before it died may have arrived meanwhile: poll once more.
      if (!std::exchange(was_death_seen, !dead.empty())) return;
      std::sort(dead.begin(), dead.end());  // names all of them: others end after the first
      throw PeerLostError(list_ranks(dead) + " died while " + needed.step +
                          ": the process has ended");
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

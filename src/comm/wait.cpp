#include "comm/wait.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

#include "kolo/error.hpp"

namespace kolo::comm {

void wait(Task task, Deadline deadline) {
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
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongest);
  }
}

}  // namespace kolo::comm

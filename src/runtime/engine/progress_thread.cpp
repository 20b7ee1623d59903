#include "runtime/engine/progress_thread.hpp"

#include <algorithm>
#include <chrono>

#include "runtime/engine/backoff.hpp"

namespace kolo::runtime {
namespace {

// Not longer: a lost rank is found, and told of, by these steps.
constexpr auto kIdleSleep = std::chrono::milliseconds(50);
constexpr auto kShortestIdlePause = std::chrono::milliseconds(1);
constexpr auto kLongestIdlePause = std::chrono::milliseconds(16);

}  // namespace

void ProgressThread::start() {
  const Lock lock(lock_);
  thread_ = std::thread([this] { loop(); });
}

void ProgressThread::stop() {
  const Lock lock(lock_);
  if (!thread_.joinable()) return;
  is_stopping_ = true;
  notify();
  thread_.join();
}

void ProgressThread::loop() {
  // Usually it does not spin: computing threads share its cores, and a waiting caller makes
  // progress itself.
  Backoff backoff(Backoff::Duration{0});
  bool was_notified = false;
  auto pause = kShortestIdlePause;
  while (!is_stopping_) {
    if (work_.try_progress()) {
      backoff.reset();
      pause = kShortestIdlePause;
      was_notified = false;
    } else if (work_.is_needed()) {
      const Backoff::Duration pause_now = backoff.next_pause(work_.spin());
      if (pause_now.count() > 0) wake_signal_.wait_for(pause_now);
    } else if (was_notified) {
      // The wake-up was unnecessary: the submitting caller makes progress too, and probably will
      // again. If they share a core, waking up costs more than a small operation does.
      was_notified = wake_signal_.sleep_for(pause);
      pause = std::min(2 * pause, kLongestIdlePause);
    } else {
      was_notified = wake_signal_.wait_for(kIdleSleep);
      if (!was_notified) pause = kShortestIdlePause;
    }
  }
}

}  // namespace kolo::runtime

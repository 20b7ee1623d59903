#include "runtime/lane/progress_thread.hpp"

#include <algorithm>

#include "runtime/lane/backoff.hpp"
#include "runtime/lane/lane.hpp"

namespace kolo::runtime {
namespace {

constexpr auto kIdleSleep = std::chrono::milliseconds(50);
constexpr auto kSleepInDemand = std::chrono::milliseconds(1);
constexpr auto kShortestIdlePause = std::chrono::milliseconds(1);
constexpr auto kLongestIdlePause = std::chrono::milliseconds(16);

}  // namespace

ProgressThread::ProgressThread(Lane& lane) : lane_(lane), thread_([this] { loop(); }) {}

ProgressThread::~ProgressThread() {
  is_stopping_ = true;
  lane_.wake_signal().notify();
  thread_.join();
}

void ProgressThread::loop() {
  // It never spins: computing threads share its cores, and a waiting caller makes progress itself.
  Backoff backoff(Backoff::Duration{0});
  bool was_notified = false;
  auto pause = kShortestIdlePause;
  while (!is_stopping_) {
    if (lane_.try_progress()) {
      backoff.reset();
      pause = kShortestIdlePause;
      was_notified = false;
    } else if (lane_.needs_progress()) {
      lane_.wake_signal().wait_for(backoff.next_pause());
    } else if (was_notified) {
      // The wake-up was unnecessary: the submitting caller makes progress too, and probably will
      // again. If they share a core, waking up costs more than a small operation does.
      was_notified = lane_.wake_signal().sleep_for(pause);
      pause = std::min(2 * pause, kLongestIdlePause);
    } else {
      was_notified =
          lane_.wake_signal().wait_for(lane_.is_in_demand() ? kSleepInDemand : kIdleSleep);
      if (!was_notified) pause = kShortestIdlePause;
    }
  }
}

}  // namespace kolo::runtime

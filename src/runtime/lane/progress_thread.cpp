#include "runtime/lane/progress_thread.hpp"

#include <algorithm>
#include <utility>

#include "runtime/lane/backoff.hpp"

namespace kolo::runtime {
namespace {

constexpr auto kIdleSleep = std::chrono::milliseconds(50);
constexpr auto kShortestDoze = std::chrono::milliseconds(1);
constexpr auto kLongestDoze = std::chrono::milliseconds(16);

}  // namespace

ProgressThread::ProgressThread(std::shared_ptr<Lane> lane)
    : lane_(std::move(lane)), thread_([this] { loop(); }) {}

ProgressThread::~ProgressThread() {
  is_stopping_ = true;
  lane_->wake_signal().notify();
  thread_.join();
}

void ProgressThread::loop() {
  // It never spins: the threads that compute share its cores, and a caller in a hurry drives
  // itself.
  Backoff backoff(Backoff::Duration{0});
  bool was_called = false;
  auto doze = kShortestDoze;
  while (!is_stopping_) {
    if (lane_->try_progress()) {
      backoff.reset();
      doze = kShortestDoze;
      was_called = false;
    } else if (lane_->needs_progress()) {
      lane_->wake_signal().wait_for(backoff.next_pause());
    } else if (was_called) {
      // In vain: whoever submitted drives as well, and will probably do so again. Waking up takes
      // more of the core that both share than a small operation does.
      was_called = lane_->wake_signal().sleep_for(doze);
      doze = std::min(2 * doze, kLongestDoze);
    } else {
      was_called = lane_->wake_signal().wait_for(kIdleSleep);
      if (!was_called) doze = kShortestDoze;
    }
  }
}

}  // namespace kolo::runtime

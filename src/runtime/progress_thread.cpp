#include "runtime/progress_thread.hpp"

#include <utility>

#include "runtime/backoff.hpp"

namespace kolo::runtime {
namespace {

constexpr auto kIdleSleep = std::chrono::milliseconds(50);

}  // namespace

void ProgressThread::start() {
  thread_ = std::thread([this] { loop(); });
}

void ProgressThread::stop() {
  if (!thread_.joinable()) return;
  is_stopping_ = true;
  wake_up_.call();
  thread_.join();
}

void ProgressThread::add(std::shared_ptr<Lane> lane) {
  const std::lock_guard lock(lanes_lock_);
  lanes_.push_back(std::move(lane));
}

void ProgressThread::loop() {
  // It never spins: the threads that compute share its cores, and a caller in a hurry drives itself.
  Backoff backoff(Backoff::Duration{0});
  std::vector<std::shared_ptr<Lane>> lanes;
  while (!is_stopping_) {
    {
      const std::lock_guard lock(lanes_lock_);
      lanes = lanes_;
    }
    bool progressed = false;
    bool is_needed = false;
    for (const auto& lane : lanes) {
      progressed |= lane->try_turn();
      is_needed |= lane->needs_driving();
    }
    if (progressed) {
      backoff.reset();
    } else {
      wake_up_.sleep(is_needed ? backoff.next_pause() : kIdleSleep);
    }
  }
}

}  // namespace kolo::runtime

#include "runtime/progress_thread.hpp"

#include <utility>

#include "runtime/backoff.hpp"

namespace kolo::runtime {
namespace {

constexpr auto kIdleSleep = std::chrono::milliseconds(50);

}  // namespace

ProgressThread::ProgressThread(std::shared_ptr<Lane> lane)
    : lane_(std::move(lane)), thread_([this] { loop(); }) {}

ProgressThread::~ProgressThread() {
  is_stopping_ = true;
  lane_->wake_up().call();
  thread_.join();
}

void ProgressThread::loop() {
  // It never spins: the threads that compute share its cores, and a caller in a hurry drives itself.
  Backoff backoff(Backoff::Duration{0});
  while (!is_stopping_) {
    if (lane_->try_turn()) {
      backoff.reset();
    } else {
      lane_->wake_up().sleep(lane_->needs_driving() ? backoff.next_pause() : kIdleSleep);
    }
  }
}

}  // namespace kolo::runtime

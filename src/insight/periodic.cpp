#include "insight/periodic.hpp"

#include <utility>

namespace kolo::insight {

Periodic::Periodic(std::chrono::milliseconds interval, std::function<bool(bool)> function)
    : interval_(interval), function_(std::move(function)), thread_([this] { loop(); }) {}

Periodic::~Periodic() {
  {
    const Lock lock(lock_);
    is_stopping_ = true;
  }
  stopped_.notify_one();
  thread_.join();
}

void Periodic::loop() {
  for (bool is_last = false; function_(is_last) && !is_last;) {
    const Lock lock(lock_);
    is_last =
        stopped_.wait_for(lock_, interval_, [&]() KOLO_REQUIRES(lock_) { return is_stopping_; });
  }
}

}  // namespace kolo::insight

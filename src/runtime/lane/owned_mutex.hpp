#pragma once

#include <atomic>
#include <mutex>
#include <thread>

namespace kolo::runtime {

/// A mutex that knows whether the calling thread holds it.
class OwnedMutex {
 public:
  void lock() {
    mutex_.lock();
    owner_ = std::this_thread::get_id();
  }
  bool try_lock() {
    const bool is_locked = mutex_.try_lock();
    if (is_locked) owner_ = std::this_thread::get_id();
    return is_locked;
  }
  void unlock() {
    owner_ = std::thread::id();
    mutex_.unlock();
  }
  bool is_mine() const { return owner_ == std::this_thread::get_id(); }

 private:
  std::mutex mutex_;
  std::atomic<std::thread::id> owner_{};
};

}  // namespace kolo::runtime

#pragma once

#include <atomic>
#include <mutex>
#include <thread>

// What protects what, for Clang to check (-Wthread-safety, see the preset clang); other compilers
// know no such attributes.
#ifdef __clang__
#define KOLO_THREAD_SAFETY(attribute) __attribute__((attribute))
#else
#define KOLO_THREAD_SAFETY(attribute)
#endif
/// A member, or with PT_ what it points to, that is used under the lock alone.
#define KOLO_GUARDED_BY(mutex) KOLO_THREAD_SAFETY(guarded_by(mutex))
#define KOLO_PT_GUARDED_BY(mutex) KOLO_THREAD_SAFETY(pt_guarded_by(mutex))
/// A function, or a lambda before its body, whose caller holds the lock.
#define KOLO_REQUIRES(mutex) KOLO_THREAD_SAFETY(requires_capability(mutex))
/// A function that uses guarded members without the lock; a comment says why it may.
#define KOLO_NO_THREAD_SAFETY_ANALYSIS KOLO_THREAD_SAFETY(no_thread_safety_analysis)

namespace kolo {

/// A mutex that guards what KOLO_GUARDED_BY says, and knows whether the calling thread holds it. A
/// std::condition_variable_any waits with it while a Lock holds it.
class KOLO_THREAD_SAFETY(capability("mutex")) Mutex {
 public:
  void lock() KOLO_THREAD_SAFETY(acquire_capability()) {
    mutex_.lock();
    note_owner();
  }
  bool try_lock() KOLO_THREAD_SAFETY(try_acquire_capability(true)) {
    const bool is_locked = mutex_.try_lock();
    if (is_locked) note_owner();
    return is_locked;
  }
  void unlock() KOLO_THREAD_SAFETY(release_capability()) {
    owner_.store({}, std::memory_order_relaxed);
    mutex_.unlock();
  }
  /// A thread sees its own stores in order, whatever others store.
  bool is_mine() const {
    return owner_.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }

 private:
  void note_owner() { owner_.store(std::this_thread::get_id(), std::memory_order_relaxed); }

  std::mutex mutex_;
  std::atomic<std::thread::id> owner_{};
};

/// Holds a mutex until the end of the scope.
class KOLO_THREAD_SAFETY(scoped_lockable) Lock {
 public:
  explicit Lock(Mutex& mutex) KOLO_THREAD_SAFETY(acquire_capability(mutex)) : mutex_(mutex) {
    mutex_.lock();
  }
  /// After a try_lock() that has succeeded.
  Lock(Mutex& mutex, std::adopt_lock_t) KOLO_REQUIRES(mutex) : mutex_(mutex) {}
  Lock(const Lock&) = delete;  // unlocks once
  Lock& operator=(const Lock&) = delete;
  ~Lock() KOLO_THREAD_SAFETY(release_capability()) { mutex_.unlock(); }

 private:
  Mutex& mutex_;
};

}  // namespace kolo

#pragma once

#include <coroutine>
#include <exception>
#include <utility>

#pragma GCC visibility push(default)
namespace kolo {

/// What one poll of a Task did.
enum class Progress : unsigned char {
  Waiting,   ///< nothing: its awaitable is not ready
  Advanced,  ///< some work; it may be polled again at once
  Done,      ///< it has ended
};

/// A coroutine that never blocks: it suspends at each `co_await` until the awaitable is ready, and
/// resumes at the next poll.
///
///     Task send_both(Communicator& communicator, …) {
///       Transfer first = communicator.send(…);
///       Transfer second = communicator.send(…);
///       co_await first;
///       co_await second;
///     }
///
/// Awaitables are other Tasks and all types with `bool ready()`, which tests without blocking and
/// may throw: a Transfer, a stage of a SharedWindow, yield(). Temporaries among the arguments of an
/// awaited Task must be trivially destructible: GCC 12 destroys others twice. One thread at a time
/// polls a Task, not necessarily always the same one. Destroying an unfinished Task destroys its
/// locals, which abandons their transfers.
class [[nodiscard]] Task {
 public:
  class promise_type;

  Task(Task&& other) noexcept : frame_(std::exchange(other.frame_, nullptr)) {}
  Task& operator=(Task&& other) noexcept {
    Task(std::move(other)).swap(*this);
    return *this;
  }
  Task(const Task&) = delete;  // a frame has one owner
  Task& operator=(const Task&) = delete;
  ~Task() {
    if (frame_) frame_.destroy();
  }

  /// Resumes the task until it must wait or has ended.
  ///
  /// An exception of an awaitable is thrown where it is awaited. An exception that leaves the task
  /// ends it.
  ///
  /// @throws the exception that ended the task, at every poll
  Progress poll();

 private:
  explicit Task(std::coroutine_handle<promise_type> frame) : frame_(frame) {}
  void swap(Task& other) noexcept { std::swap(frame_, other.frame_); }

  std::coroutine_handle<promise_type> frame_;
};

/// Awaitable that suspends the task until it is polled next, so that other tasks make progress.
class Yield {
 public:
  bool ready() { return std::exchange(has_yielded_, true); }

 private:
  bool has_yielded_ = false;
};
inline Yield yield() { return {}; }

class Task::promise_type {
 public:
  Task get_return_object() {
    return Task(std::coroutine_handle<promise_type>::from_promise(*this));
  }
  std::suspend_always initial_suspend() noexcept { return {}; }
  std::suspend_always final_suspend() noexcept { return {}; }
  void return_void() {}
  void unhandled_exception() { error_ = std::current_exception(); }

  template <class Awaitable>
  auto await_transform(Awaitable&& awaitable) {
    return Awaiter<Awaitable>{.awaitable = std::forward<Awaitable>(awaitable)};
  }

 private:
  friend class Task;

  // Holds a temporary by value and a named awaitable by reference while the task waits for it.
  template <class Awaitable>
  struct Awaiter {
    Awaitable awaitable;
    std::exception_ptr error{};

    Progress look() {
      try {
        if constexpr (requires { awaitable.ready(); }) {
          return awaitable.ready() ? Progress::Done : Progress::Waiting;
        } else {
          return awaitable.poll();
        }
      } catch (...) {
        error = std::current_exception();
        return Progress::Done;
      }
    }
    bool await_ready() { return look() == Progress::Done; }
    void await_suspend(std::coroutine_handle<promise_type> frame) {
      promise_type& promise = frame.promise();
      promise.awaited_ = this;
      promise.look_ = [](void* self) { return static_cast<Awaiter*>(self)->look(); };
    }
    void await_resume() const {
      if (error) std::rethrow_exception(error);
    }
  };

  void* awaited_ = nullptr;
  Progress (*look_)(void*) = nullptr;
  std::exception_ptr error_;
};

inline Progress Task::poll() {
  promise_type& promise = frame_.promise();
  if (!frame_.done()) {
    if (promise.awaited_ != nullptr) {
      const Progress awaited = promise.look_(promise.awaited_);
      if (awaited != Progress::Done) return awaited;
      promise.awaited_ = nullptr;
    }
    frame_.resume();
  }
  if (promise.error_) std::rethrow_exception(promise.error_);
  return frame_.done() ? Progress::Done : Progress::Advanced;
}

}  // namespace kolo
#pragma GCC visibility pop

#pragma once

#include <csignal>
#include <ctime>

namespace kolo {

/// While it lives, a system call of this thread that would raise `signal`, as a write beyond the
/// limit on file sizes raises SIGXFSZ and ends the process without a word, only returns its error.
/// The program's handlers and other threads are not touched.
class HeldSignal {
 public:
  explicit HeldSignal(int signal) {
    sigset_t pending;
    sigemptyset(&signal_);
    sigaddset(&signal_, signal);
    sigpending(&pending);
    was_pending_ = sigismember(&pending, signal) == 1;
    pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  HeldSignal(const HeldSignal&) = delete;  // restores the mask once
  HeldSignal& operator=(const HeldSignal&) = delete;
  ~HeldSignal() {
    const timespec at_once{};
    if (!was_pending_) sigtimedwait(&signal_, nullptr, &at_once);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t signal_{};
  sigset_t before_{};
  bool was_pending_ = false;
};

}  // namespace kolo

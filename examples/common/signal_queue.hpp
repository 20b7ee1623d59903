#pragma once

#include <csignal>
#include <optional>
#include <sys/signalfd.h>
#include <vector>

#include "common/descriptor.hpp"

namespace examples {

/// While it exists, signals are queued and can be read: those of the thread that constructs it, and
/// of the threads that this thread starts later.
class SignalQueue {
 public:
  explicit SignalQueue(const std::vector<int>& signals);
  SignalQueue(const SignalQueue&) = delete;  // it restores the mask once
  SignalQueue& operator=(const SignalQueue&) = delete;
  ~SignalQueue();

  int descriptor() const { return descriptor_.number(); }
  /// The next signal that has arrived; does not wait.
  std::optional<signalfd_siginfo> next() const;
  /// The previous signal mask, with which children start.
  const sigset_t& before() const { return before_; }

 private:
  sigset_t before_{};
  Descriptor descriptor_;
};

}  // namespace examples

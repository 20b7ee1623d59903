#pragma once

#include <csignal>
#include <optional>
#include <sys/signalfd.h>
#include <vector>

#include "common/descriptor.hpp"

namespace examples {

/// While it exists, signals arrive as something to read: those of the thread that makes it, and of
/// the threads that thread makes later.
class SignalQueue {
 public:
  explicit SignalQueue(const std::vector<int>& signals);
  SignalQueue(const SignalQueue&) = delete;  // it gives back what it took once
  SignalQueue& operator=(const SignalQueue&) = delete;
  ~SignalQueue();

  int descriptor() const { return descriptor_.number(); }
  /// The next signal that has arrived; does not wait.
  std::optional<signalfd_siginfo> next() const;
  /// What was blocked before: children begin with it.
  const sigset_t& before() const { return before_; }

 private:
  sigset_t before_{};
  Descriptor descriptor_;
};

}  // namespace examples

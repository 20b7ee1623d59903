#pragma once

#include <exception>

#include "common/signal_queue.hpp"

namespace bench {

/// A signal has asked the process to end.
class Interrupted : public std::exception {
 public:
  explicit Interrupted(int signal) : signal_(signal) {}
  int signal() const { return signal_; }
  const char* what() const noexcept override { return "interrupted"; }

 private:
  int signal_;
};

/// While it exists, the signals that end a program are queued and read, so that child processes can
/// be ended first. Applies to the thread that constructs it and to those that it starts later.
class Interrupts {
 public:
  Interrupts();

  int descriptor() const { return signals_.descriptor(); }
  /// Throws Interrupted if a signal has arrived.
  void check() const;
  /// The signal mask with which children start.
  const sigset_t& blocked_before() const { return signals_.before(); }

 private:
  examples::SignalQueue signals_;
};

}  // namespace bench

#pragma once

#include <exception>

#include "common/signal_queue.hpp"

namespace bench {

/// The process was told to end.
class Interrupted : public std::exception {
 public:
  explicit Interrupted(int signal) : signal_(signal) {}
  int signal() const { return signal_; }
  const char* what() const noexcept override { return "interrupted"; }

 private:
  int signal_;
};

/// While it exists, the signals that end a program arrive as something to read, so that what was
/// started can be ended first. Of the thread that makes it, and of those that thread makes later.
class Interrupts {
 public:
  Interrupts();

  int descriptor() const { return signals_.descriptor(); }
  /// Throws Interrupted where one has arrived.
  void check() const;
  /// What children begin with.
  const sigset_t& blocked_before() const { return signals_.before(); }

 private:
  examples::SignalQueue signals_;
};

}  // namespace bench

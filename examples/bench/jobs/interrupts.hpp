#pragma once

#include <csignal>
#include <exception>

#include "bench/jobs/channel.hpp"

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
  Interrupts(const Interrupts&) = delete;  // it gives back what it took once
  Interrupts& operator=(const Interrupts&) = delete;
  ~Interrupts();

  int descriptor() const { return descriptor_.number(); }
  /// Throws Interrupted where one has arrived.
  void check() const;
  /// For a child, between fork and exec.
  void restore() const;

 private:
  sigset_t before_{};
  Descriptor descriptor_;
};

}  // namespace bench

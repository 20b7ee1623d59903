#pragma once

#include <poll.h>
#include <string>
#include <vector>

#include "common/descriptor.hpp"
#include "restart/cause.hpp"

namespace restart {

/// Forwards a job's standard error unchanged, and parses it for the cause of the job's end.
class ErrorRelay {
 public:
  /// Throws std::system_error.
  ErrorRelay();

  /// The job's standard error; close it here once the job has it.
  int input() const { return input_.number(); }
  void close_input() { input_ = examples::Descriptor(); }

  /// The descriptors to wait for before move().
  std::vector<pollfd> watched() const;
  /// Reads and writes as much as possible without blocking.
  void move(const std::vector<pollfd>& watched);
  /// Forwards the rest after the job has ended.
  void finish();

  const CauseFinder& finder() const { return finder_; }

 private:
  bool read();
  void write();

  examples::Descriptor input_;
  examples::Descriptor output_;
  std::string pending_;  // not written yet
  CauseFinder finder_;
};

}  // namespace restart

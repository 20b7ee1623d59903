#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <thread>

#include "comm/file_descriptor.hpp"
#include "comm/launcher.hpp"

namespace kolo::comm {

/// Lets other processes on this host see that this process is starting Kolo, as long as the object
/// exists. The kernel forgets it when the process ends, for any reason.
class StartWatch {
 public:
  /// `launcher`, if known, determines which ranks there are.
  explicit StartWatch(std::optional<Launcher> launcher);

  /// Which ranks are starting Kolo on this host, in words.
  std::string describe_arrivals() const;

 private:
  bool has_started(int rank) const;

  const std::optional<Launcher> launcher_;
  FileDescriptor here_;  // a socket with this rank's name
};

/// "120 s", rounded up.
std::string text_of_seconds(std::chrono::nanoseconds time);

/// Ends the process, with a text on stderr, unless it is destroyed before the timeout. For
/// MPI_Init, which waits for other processes indefinitely and cannot be cancelled.
class EndOnTimeout {
 public:
  EndOnTimeout(const StartWatch& watch, std::chrono::nanoseconds timeout);

 private:
  std::jthread thread_;
};

}  // namespace kolo::comm

#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <thread>

#include "comm/file_descriptor.hpp"
#include "comm/launcher.hpp"

namespace kolo::comm {

/// While it lives, this process waits for others to start Kolo, and others on its host can see so.
/// The kernel forgets it when the process ends, in whatever way.
class StartWatch {
 public:
  /// `launcher` says which ranks there are, if it is known.
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

/// While it lives: ends the process, with a text on stderr, when the timeout has passed. For
/// MPI_Init, which waits for other processes without an end, and cannot be given up.
class EndOnTimeout {
 public:
  EndOnTimeout(const StartWatch& watch, std::chrono::nanoseconds timeout);

 private:
  std::jthread thread_;
};

}  // namespace kolo::comm

#pragma once

#include <chrono>
#include <optional>
#include <set>
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

  /// Call it after `time_to_look`. Ranks that have come with this one give up at the same moment,
  /// and may have ended before this one describes the arrivals.
  void look();
  static std::chrono::nanoseconds time_to_look(std::chrono::nanoseconds timeout) {
    return timeout / 10 * 9;
  }
  /// Which ranks are starting Kolo on this host, or were at the last look, in words.
  std::string describe_arrivals() const;

 private:
  bool has_started(int rank) const;

  const std::optional<Launcher> launcher_;
  FileDescriptor here_;      // a socket with this rank's name
  std::set<int> last_seen_;  // ranks
};

/// "120 s", rounded up.
std::string text_of_seconds(std::chrono::nanoseconds time);

/// Ends the process, with a text on stderr, unless it is destroyed before the timeout. For
/// MPI_Init, which waits for other processes indefinitely and cannot be cancelled.
class EndOnTimeout {
 public:
  EndOnTimeout(StartWatch& watch, std::chrono::nanoseconds timeout);

 private:
  std::jthread thread_;
};

}  // namespace kolo::comm

#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <sys/types.h>
#include <utility>
#include <vector>

#include "bench/jobs/interrupts.hpp"

namespace bench {

/// A child process without input, whose output goes to our stderr. It ends when this process dies,
/// and when this object is destroyed.
class ChildProcess {
 public:
  using Variables = std::vector<std::pair<std::string, std::string>>;

  /// Throws examples::CannotStart.
  ChildProcess(const std::vector<std::string>& command, const Variables& environment,
               const Interrupts& interrupts);
  ChildProcess(const ChildProcess&) = delete;  // a process is waited for only once
  ChildProcess& operator=(const ChildProcess&) = delete;
  ~ChildProcess();

  /// How it ended, such as "exit status 1"; empty if it is still running after `duration`.
  std::optional<std::string> wait_for(std::chrono::milliseconds duration);

  /// Sends SIGTERM. The destructor does so too, then SIGKILL if the process does not end.
  void ask_to_end();

 private:
  pid_t pid_ = -1;
  std::optional<std::string> ending_;
};

inline constexpr const char* kCleanExit = "exit status 0";

}  // namespace bench

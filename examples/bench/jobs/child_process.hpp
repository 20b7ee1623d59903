#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <sys/types.h>
#include <utility>
#include <vector>

#include "bench/jobs/interrupts.hpp"

namespace bench {

/// A program that this one started: without input, its output where our errors go. It ends when
/// we die, and when this object does.
class ChildProcess {
 public:
  using Variables = std::vector<std::pair<std::string, std::string>>;

  /// Throws examples::CannotStart.
  ChildProcess(const std::vector<std::string>& command, const Variables& environment,
               const Interrupts& interrupts);
  ChildProcess(const ChildProcess&) = delete;  // a process is awaited once
  ChildProcess& operator=(const ChildProcess&) = delete;
  ~ChildProcess();

  /// How it ended, as in "exit status 1"; empty while it has not, after waiting so long.
  std::optional<std::string> wait_for(std::chrono::milliseconds duration);

  /// Asks it to end. The destructor does so too, and where that does not help, uses SIGKILL.
  void ask_to_end();

 private:
  pid_t pid_ = -1;
  std::optional<std::string> ending_;
};

inline constexpr const char* kGoodEnding = "exit status 0";

}  // namespace bench

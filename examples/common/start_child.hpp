#pragma once

#include <csignal>
#include <stdexcept>
#include <string>
#include <sys/types.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace examples {

/// A program cannot be started; the text names it and says why.
class CannotStart : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The setup of a child process.
struct ChildSetup {
  const std::vector<std::string>& command;  ///< looked up in PATH
  const sigset_t& blocked_signals;
  std::vector<std::pair<std::string, std::string>> environment{};  ///< added to this process's
  int input = STDIN_FILENO;                                        ///< descriptors of this process
  int output = STDOUT_FILENO;
  int error = STDERR_FILENO;
  bool has_own_group = false;  ///< Ctrl-C does not reach it
};

/// Starts a program, which gets SIGTERM when the thread that calls this ends. Returns its id once
/// the program runs. Throws CannotStart.
pid_t start_child(const ChildSetup& setup);

}  // namespace examples

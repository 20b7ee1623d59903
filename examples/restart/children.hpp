#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <poll.h>
#include <string>
#include <sys/types.h>
#include <vector>

#include "common/descriptor.hpp"
#include "common/signal_queue.hpp"

namespace restart {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// A signal to this program other than SIGCHLD.
struct Signal {
  int number = 0;
  bool is_from_terminal = false;  ///< which has sent it to our children too

  /// Whether it asks the program to end. Others are for the job only.
  bool ends() const;
};

/// The descendants of this process, and the signals that it receives.
class Children {
 public:
  /// Makes this process a subreaper: orphaned descendants become its children.
  Children();
  Children(const Children&) = delete;  // a process has one set of them
  Children& operator=(const Children&) = delete;
  ~Children();

  /// Starts a program with our standard input and output. Throws examples::CannotStart.
  pid_t start(const std::vector<std::string>& command, int error);
  /// The same without input and output.
  pid_t start_quietly(const std::vector<std::string>& command);

  /// Sleeps until a signal arrives, one of `watched` is ready, or `limit` has passed; -1: no limit.
  /// Reaps children that have ended.
  void wait(std::vector<pollfd>& watched, milliseconds limit);
  void wait(milliseconds limit);

  /// How a child ended, as a status of waitpid(); empty while it runs.
  std::optional<int> status_of(pid_t child) const;
  /// The next signal that has arrived.
  std::optional<Signal> next_signal();
  /// The first signal that has asked this program to end; 0: none.
  int end_signal() const { return end_signal_; }

  /// Ends all descendants: with SIGTERM, and after `grace` with SIGKILL. Returns those that the
  /// kernel keeps nevertheless.
  std::vector<pid_t> end_all(milliseconds grace);

 private:
  void reap();
  void read_signals();

  examples::SignalQueue signals_;
  examples::Descriptor nothing_;
  std::vector<Signal> arrived_;
  int end_signal_ = 0;
  std::map<pid_t, std::optional<int>> endings_;  // of processes started here
};

}  // namespace restart

#include "restart/job.hpp"

#include <algorithm>
#include <csignal>
#include <sys/wait.h>
#include <unistd.h>

#include "restart/error_relay.hpp"
#include "restart/process_tree.hpp"

namespace restart {
namespace {

using namespace std::chrono_literals;

constexpr milliseconds kForever{-1};
constexpr auto kRankExitTimeout = 500ms;  // for ranks to end after mpirun
constexpr auto kPollInterval = 10ms;

/// mpirun ends a job only on SIGINT and SIGTERM.
int mpirun_signal_for(int signal) {
  return signal == SIGHUP || signal == SIGQUIT ? SIGTERM : signal;
}

/// A running mpirun.
class Job {
 public:
  Job(Children& children, const std::vector<std::string>& command, milliseconds grace)
      : children_(children), grace_(grace), mpirun_(children.start(command, relay_.input())) {
    relay_.close_input();
  }

  JobEnd run() {
    while (!children_.status_of(mpirun_)) {
      std::vector<pollfd> watched = relay_.watched();
      children_.wait(watched, patience());
      relay_.move(watched);
      forward_signals();
      if (relay_.finder().is_aborted()) set_deadline();
      if (killing_at_ && Clock::now() >= *killing_at_) kill();
    }
    const int status = *children_.status_of(mpirun_);
    end_remaining_ranks();
    relay_.finish();
    const int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    return {.code = signal != 0 ? 128 + signal : WEXITSTATUS(status),
            .signal = signal,
            .was_killed = was_killed_,
            .cause = relay_.finder().cause()};
  }

 private:
  void set_deadline() {
    if (!killing_at_) killing_at_ = Clock::now() + grace_;
  }

  void kill() {
    say("mpirun does not end: it is killed");
    was_killed_ = true;
    children_.end_all(0ms);
  }

  milliseconds patience() const {
    if (!killing_at_) return kForever;
    const auto left = std::chrono::ceil<milliseconds>(*killing_at_ - Clock::now());
    return std::max(left, milliseconds(0));
  }

  void forward_signals() {
    while (const auto signal = children_.next_signal()) {
      if (signal->ends()) set_deadline();
      // If the terminal has sent it to mpirun too, mpirun would take ours for a second Ctrl-C, on
      // which it abandons its ranks.
      const bool is_there = !signal->is_from_terminal && !children_.status_of(mpirun_);
      if (is_there) ::kill(mpirun_, mpirun_signal_for(signal->number));
    }
  }

  /// Ends the ranks that mpirun did not end, or could not since it was killed.
  void end_remaining_ranks() {
    const Clock::time_point end = Clock::now() + kRankExitTimeout;
    std::size_t count = 0;
    while ((count = find_descendants().size()) > 0 && Clock::now() < end) {
      children_.wait(kPollInterval);
    }
    if (count == 0) return;
    say("ends " + std::to_string(count) +
        (count == 1 ? " process that the job has" : " processes that the job has") +
        " left behind");
    for (const pid_t process : children_.end_all(grace_)) {
      say("process " + std::to_string(process) +
          " does not end even by SIGKILL, as while it waits for a device; it stays");
    }
  }

  Children& children_;
  milliseconds grace_;
  ErrorRelay relay_;
  pid_t mpirun_;
  std::optional<Clock::time_point> killing_at_;  // if it must end
  bool was_killed_ = false;
};

}  // namespace

JobEnd run_job(Children& children, const std::vector<std::string>& command, milliseconds grace) {
  return Job(children, command, grace).run();
}

void say(const std::string& text) {
  const std::string line = "kolo-restart: " + text + '\n';
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace restart

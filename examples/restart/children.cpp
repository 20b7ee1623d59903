#include "restart/children.hpp"

#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/start_child.hpp"
#include "restart/process_tree.hpp"

namespace restart {
namespace {

using namespace std::chrono_literals;

constexpr auto kKillTimeout = 10s;  // after SIGKILL
constexpr auto kPause = 10ms;

/// SIGPIPE is included so that the job does not end when the reader of its log does.
std::vector<int> handled_signals() {
  ::signal(SIGCHLD, SIG_DFL);  // if our parent ignored it, the kernel would reap children
  std::vector<int> signals{SIGCHLD, SIGPIPE};
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) {
    struct sigaction action{};
    ::sigaction(signal, nullptr, &action);
    if (action.sa_handler != SIG_IGN) signals.push_back(signal);  // nohup ignores SIGHUP
  }
  return signals;
}

}  // namespace

bool Signal::ends() const { return number != SIGUSR1 && number != SIGUSR2; }

Children::Children()
    : signals_(handled_signals()), nothing_(::open("/dev/null", O_RDWR | O_CLOEXEC)) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

// A pending SIGPIPE would end this program once it is unblocked.
Children::~Children() { read_signals(); }

pid_t Children::start(const std::vector<std::string>& command, int error) {
  const pid_t child = examples::start_child(
      {.command = command, .blocked_signals = signals_.before(), .error = error});
  endings_[child] = std::nullopt;
  return child;
}

pid_t Children::start_quietly(const std::vector<std::string>& command) {
  const int nothing = nothing_.number();
  const pid_t child = examples::start_child({.command = command,
                                             .blocked_signals = signals_.before(),
                                             .input = nothing,
                                             .output = nothing,
                                             .error = nothing});
  endings_[child] = std::nullopt;
  return child;
}

void Children::wait(std::vector<pollfd>& watched, milliseconds limit) {
  watched.push_back({signals_.descriptor(), POLLIN, 0});
  ::poll(watched.data(), watched.size(), static_cast<int>(limit.count()));
  watched.pop_back();
  read_signals();
  reap();
}

void Children::wait(milliseconds limit) {
  std::vector<pollfd> nothing;
  wait(nothing, limit);
}

std::optional<int> Children::status_of(pid_t child) const {
  const auto found = endings_.find(child);
  return found == endings_.end() ? std::nullopt : found->second;
}

std::optional<Signal> Children::next_signal() {
  if (arrived_.empty()) return std::nullopt;
  const Signal signal = arrived_.front();
  arrived_.erase(arrived_.begin());
  return signal;
}

std::vector<pid_t> Children::end_all(milliseconds grace) {
  std::vector<pid_t> left = find_descendants();
  for (const pid_t process : left) {
    ::kill(process, SIGTERM);
    ::kill(process, SIGCONT);  // a stopped process would not notice
  }
  const Clock::time_point grace_ends = Clock::now() + grace;
  while (!left.empty() && Clock::now() < grace_ends + kKillTimeout) {
    if (Clock::now() >= grace_ends) {
      for (const pid_t process : left) ::kill(process, SIGKILL);
    }
    wait(kPause);
    left = find_descendants();
  }
  reap();
  return left;
}

void Children::reap() {
  int status = 0;
  for (pid_t child = 0; (child = ::waitpid(-1, &status, WNOHANG)) > 0;) {
    const auto started = endings_.find(child);  // others are adopted
    if (started != endings_.end() && !started->second) started->second = status;
  }
}

void Children::read_signals() {
  while (const auto info = signals_.next()) {
    const auto number = static_cast<int>(info->ssi_signo);
    if (number == SIGCHLD || number == SIGPIPE) continue;
    arrived_.push_back({number, info->ssi_code == SI_KERNEL});
    if (end_signal_ == 0 && arrived_.back().ends()) end_signal_ = number;
  }
}

}  // namespace restart

#include "bench/jobs/child_process.hpp"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <sys/wait.h>
#include <system_error>
#include <thread>
#include <unistd.h>

#include "common/descriptor.hpp"
#include "common/start_child.hpp"

namespace bench {
namespace {

using namespace std::chrono_literals;

constexpr auto kGrace = 5s;
constexpr auto kPause = 5ms;

std::string describe(int status) {
  if (WIFEXITED(status)) return "exit status " + std::to_string(WEXITSTATUS(status));
  return "killed by signal " + std::to_string(WTERMSIG(status)) + " (" +
         ::strsignal(WTERMSIG(status)) + ")";
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& command, const Variables& environment,
                           const Interrupts& interrupts) {
  const examples::Descriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (nothing.number() < 0) throw std::system_error(errno, std::generic_category(), "/dev/null");
  pid_ = examples::start_child({.command = command,
                                .blocked_signals = interrupts.blocked_before(),
                                .environment = environment,
                                .input = nothing.number(),
                                .output = STDERR_FILENO,
                                .has_own_group = true});  // Ctrl-C: we end it ourselves
}

std::optional<std::string> ChildProcess::wait_for(std::chrono::milliseconds duration) {
  const auto end = std::chrono::steady_clock::now() + duration;
  while (!ending_) {
    int status = 0;
    if (::waitpid(pid_, &status, WNOHANG) == pid_) {
      ending_ = describe(status);
    } else if (std::chrono::steady_clock::now() >= end) {
      break;
    } else {
      std::this_thread::sleep_for(kPause);
    }
  }
  return ending_;
}

void ChildProcess::ask_to_end() {
  if (!ending_) ::kill(pid_, SIGTERM);
}

ChildProcess::~ChildProcess() {
  ask_to_end();
  if (!wait_for(kGrace)) {
    ::kill(pid_, SIGKILL);
    wait_for(kGrace);
  }
}

}  // namespace bench

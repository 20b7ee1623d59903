#include "bench/jobs/child_process.hpp"

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <system_error>
#include <thread>
#include <unistd.h>

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

std::vector<std::string> with(const ChildProcess::Variables& added) {
  std::vector<std::string> environment;
  for (char** variable = ::environ; *variable != nullptr; ++variable) {
    environment.emplace_back(*variable);
  }
  for (const auto& [name, value] : added) {
    std::erase_if(environment, [&](const auto& other) { return other.starts_with(name + '='); });
    environment.push_back(name + '=' + value);
  }
  return environment;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& command, const Variables& environment,
                           const Interrupts& interrupts) {
  std::vector<std::string> words = command;
  std::vector<std::string> variables = with(environment);
  const std::vector<char*> arguments = pointers_to(words);
  const std::vector<char*> settings = pointers_to(variables);
  const Descriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  std::array<int, 2> ends{};
  if (nothing.number() < 0 || ::pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw std::system_error(errno, std::generic_category(), "/dev/null or pipe2");
  }
  const Descriptor failure(ends[0]);
  Descriptor failed(ends[1]);
  pid_ = ::fork();
  if (pid_ == 0) {
    interrupts.restore();
    ::setpgid(0, 0);  // Ctrl-C is for us, who then end it
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    ::dup2(nothing.number(), STDIN_FILENO);
    ::dup2(STDERR_FILENO, STDOUT_FILENO);
    ::execvpe(arguments[0], arguments.data(), settings.data());
    const int error = errno;
    [[maybe_unused]] const auto written = ::write(failed.number(), &error, sizeof error);
    ::_exit(127);
  }
  int error = pid_ < 0 ? errno : 0;
  failed = Descriptor();
  if (pid_ > 0 && ::read(failure.number(), &error, sizeof error) > 0) {
    ::waitpid(pid_, nullptr, 0);
  }
  if (error == 0) return;
  throw std::system_error(
      error, std::generic_category(),
      "cannot start " + command.front() + " (KOLO_MPIRUN names another mpirun)");
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

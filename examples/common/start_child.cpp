#include "common/start_child.hpp"

#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "common/descriptor.hpp"

namespace examples {
namespace {

std::vector<std::string> with(const std::vector<std::pair<std::string, std::string>>& added) {
  std::vector<std::string> environment;
  for (char** variable = ::environ; *variable != nullptr; ++variable) {
    environment.emplace_back(*variable);
  }
  for (const auto& [name, value] : added) {
    std::erase_if(environment,
                  [&name = name](const auto& other) { return other.starts_with(name + '='); });
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

/// Runs in the child, which may call only async-signal-safe functions. Returns only if exec fails.
void become(const ChildSetup& setup, pid_t parent, char* const* arguments, char* const* variables) {
  if (setup.has_own_group) ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(1);  // it died before prctl()
  ::dup2(setup.input, STDIN_FILENO);
  ::dup2(setup.output, STDOUT_FILENO);
  ::dup2(setup.error, STDERR_FILENO);
  ::pthread_sigmask(SIG_SETMASK, &setup.blocked_signals, nullptr);
  ::execvpe(arguments[0], arguments, variables);
}

}  // namespace

pid_t start_child(const ChildSetup& setup) {
  std::vector<std::string> words = setup.command;
  std::vector<std::string> variables = with(setup.environment);
  const std::vector<char*> arguments = pointers_to(words);
  const std::vector<char*> settings = pointers_to(variables);
  const auto fail = [&](int error) {
    throw CannotStart("cannot start " + words.front() + ": " + std::strerror(error));
  };
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) fail(errno);
  const Descriptor failure(ends[0]);
  Descriptor failed(ends[1]);
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child == 0) {
    become(setup, parent, arguments.data(), settings.data());
    const int error = errno;
    [[maybe_unused]] const auto written = ::write(failed.number(), &error, sizeof error);
    ::_exit(127);
  }
  if (child < 0) fail(errno);
  failed = Descriptor();
  int error = 0;
  if (::read(failure.number(), &error, sizeof error) > 0) {
    ::waitpid(child, nullptr, 0);
    fail(error);
  }
  return child;
}

}  // namespace examples

#include "failure/record.hpp"

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <fstream>
#include <sys/wait.h>
#include <unistd.h>

namespace kolo::test {
namespace {

[[noreturn]] void exit_like(int status) {
  if (WIFSIGNALED(status)) {
    std::signal(WTERMSIG(status), SIG_DFL);
    ::kill(::getpid(), WTERMSIG(status));
  }
  std::_Exit(WEXITSTATUS(status));
}

void redirect_stderr(const std::string& path) {
  const int file = ::open(path.c_str(), O_CREAT | O_WRONLY | O_APPEND, S_IRUSR | S_IWUSR);
  if (file < 0 || ::dup2(file, STDERR_FILENO) < 0) std::perror(path.c_str());
}

}  // namespace

void stamp(const std::string& folder, const std::string& name, const std::string& text) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  std::ofstream(folder + "/" + name)
      << text << (text.empty() ? "" : " ") << std::chrono::duration<double>(now).count() << "\n";
}

void record_in(const std::string& folder, int rank) {
  const std::string number = std::to_string(rank);
  const pid_t child = ::fork();
  if (child == 0) {
    redirect_stderr(folder + "/" + number + ".err");
    return;
  }
  stamp(folder, number + ".pid", std::to_string(child));
  int status = 0;
  ::waitpid(child, &status, 0);
  stamp(folder, number + ".status",
        WIFSIGNALED(status) ? "signal " + std::to_string(WTERMSIG(status))
                            : "exit " + std::to_string(WEXITSTATUS(status)));
  exit_like(status);
}

}  // namespace kolo::test

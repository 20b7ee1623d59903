#include "common/mpirun.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace examples {
namespace {

/// A word for the shell.
std::string quote(const std::string& word) {
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

/// The first line that `mpirun --version` prints.
std::string version_of(const std::string& mpirun) {
  std::array<char, 256> line{};
  const std::string command = quote(mpirun) + " --version 2>/dev/null </dev/null";
  if (std::FILE* const output = ::popen(command.c_str(), "r")) {  // NOLINT: the program asked for
    if (std::fgets(line.data(), line.size(), output) == nullptr) line[0] = '\0';
    ::pclose(output);
  }
  return line.data();
}

}  // namespace

std::string default_mpirun() {
  const char* const wanted = std::getenv("KOLO_MPIRUN");
  return wanted != nullptr && *wanted != '\0' ? wanted : "mpirun";
}

bool is_open_mpi(const std::string& mpirun) {
  const std::string version = version_of(mpirun);
  return std::ranges::any_of(
      std::array<std::string_view, 3>{"Open MPI", "OpenRTE", "PRRTE"},
      [&](std::string_view name) { return version.find(name) != std::string::npos; });
}

}  // namespace examples

#include "restart/launcher.hpp"

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace restart {
namespace {

bool is_executable_file(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error) && ::access(path.c_str(), X_OK) == 0;
}

}  // namespace

Launcher::Launcher(std::vector<std::string> mpirun, std::vector<std::string> program,
                   bool is_open_mpi)
    : mpirun_(std::move(mpirun)), program_(std::move(program)), is_open_mpi_(is_open_mpi) {}

std::vector<std::string> Launcher::command(const Attempt& attempt) const {
  std::vector<std::string> words = start_of(attempt);
  words.insert(words.end(), program_.begin(), program_.end());
  return words;
}

std::vector<std::string> Launcher::probe(const Host& host) const {
  std::vector<std::string> words = start_of({.ranks = 1, .hosts = {host}});
  words.emplace_back("true");
  return words;
}

std::vector<std::string> Launcher::start_of(const Attempt& attempt) const {
  std::vector<std::string> words = mpirun_;
  words.insert(words.end(), {"-np", std::to_string(attempt.ranks)});
  if (!attempt.hosts.empty()) {
    words.insert(words.end(), {is_open_mpi_ ? "--host" : "-hosts", to_list(attempt.hosts)});
  }
  return words;
}

bool is_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return is_executable_file(name);
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "/bin:/usr/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (is_executable_file(std::filesystem::path(folder) / name)) return true;
  }
  return false;
}

}  // namespace restart

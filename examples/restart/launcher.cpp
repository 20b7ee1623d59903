#include "restart/launcher.hpp"

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace restart {
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

std::string problem_with_program(const std::string& name) {
  std::vector<std::filesystem::path> places;
  if (name.find('/') != std::string::npos) {
    places.emplace_back(name);
  } else {
    const char* const path = std::getenv("PATH");
    std::istringstream folders(path != nullptr ? path : "/bin:/usr/bin");
    for (std::string folder; std::getline(folders, folder, ':');) {
      places.push_back(std::filesystem::path(folder) / name);
    }
  }
  std::string problem = "cannot find the program " + name;
  for (const std::filesystem::path& place : places) {
    std::error_code error;
    if (!std::filesystem::is_regular_file(place, error)) continue;
    if (::access(place.c_str(), X_OK) == 0) return {};
    problem = "may not run the program " + place.string() + ": it is not executable (chmod +x)";
  }
  return problem;
}

}  // namespace restart

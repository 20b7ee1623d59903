#pragma once

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>

#include "kolo/error.hpp"

namespace kolo::train {

/// Throws BackendError for the system call that has just failed: "cannot write '/x': No space
/// left".
[[noreturn]] inline void throw_file_error(const std::string& action,
                                          const std::filesystem::path& path, int error = errno) {
  throw BackendError("cannot " + action + " '" + path.string() + "': " + std::strerror(error));
}

}  // namespace kolo::train

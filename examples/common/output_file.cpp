#include "common/output_file.hpp"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <system_error>
#include <utility>

#include "kolo/error.hpp"

namespace examples {

OutputFile::OutputFile(std::filesystem::path path) : path_(std::move(path)) {
  if (path_.empty()) return;
  std::error_code unknown;
  const bool exists = std::filesystem::exists(path_, unknown);
  if (std::ofstream(path_, std::ios::app)) {
    is_new_and_empty_ = !exists;
  } else {
    error_ = "cannot write " + path_.string() + ": " + std::strerror(errno);
  }
}

OutputFile::~OutputFile() {
  std::error_code unknown;
  if (is_new_and_empty_) std::filesystem::remove(path_, unknown);
}

void OutputFile::write(const std::string& text) {
  std::ofstream file(path_);
  file << text;
  file.close();
  if (!file) throw kolo::InvalidArgument("cannot write " + path_.string());
  is_new_and_empty_ = false;
}

}  // namespace examples

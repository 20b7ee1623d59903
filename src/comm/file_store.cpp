#include "comm/file_store.hpp"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iterator>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <utility>

#include "base/deadline.hpp"
#include "kolo/error.hpp"

namespace kolo::comm {

FileStore::FileStore(std::filesystem::path folder) : folder_(std::move(folder)) {
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (error) throw BackendError("cannot make " + folder_.string() + ": " + error.message());
}

std::filesystem::path FileStore::file_of(const std::string& key) const {
  std::string name = key;
  std::ranges::replace_if(
      name, [](char letter) { return std::isalnum(static_cast<unsigned char>(letter)) == 0; }, '-');
  return folder_ / name;
}

/// The file gets its name when it is complete.
void FileStore::set(const std::string& key, const std::string& value) {
  const std::filesystem::path file = file_of(key);
  const std::filesystem::path incomplete =
      file.string() + ".incomplete-" + std::to_string(::getpid());
  std::ofstream(incomplete, std::ios::binary).write(value.data(), std::ssize(value));
  std::error_code error;
  const bool is_written = std::filesystem::file_size(incomplete, error) == value.size() && !error;
  if (is_written) std::filesystem::rename(incomplete, file, error);
  if (!is_written || error) {
    std::error_code ignored;
    std::filesystem::remove(incomplete, ignored);
    throw BackendError("cannot write " + file.string() +
                       (error ? ": " + error.message() : std::string()));
  }
}

std::optional<std::string> FileStore::get(const std::string& key,
                                          std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds kLongestPause{20};
  const Deadline deadline = Deadline::after(timeout);
  for (std::chrono::milliseconds pause{1};; pause = std::min(2 * pause, kLongestPause)) {
    std::ifstream file(file_of(key), std::ios::binary);
    if (file) return std::string(std::istreambuf_iterator<char>(file), {});
    if (deadline.has_passed()) return std::nullopt;
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace kolo::comm

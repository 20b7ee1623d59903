#include "torch/checkpoint/checkpoint_folder.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <random>
#include <string>
#include <string_view>
#include <sys/stat.h>
#include <system_error>

#include "torch/checkpoint/file_error.hpp"
#include "torch/checkpoint/folders.hpp"

namespace kolo::train {
namespace {

constexpr std::string_view kCheckpoint = "checkpoint-";
constexpr std::string_view kIncomplete = ".incomplete-";
constexpr std::string_view kRemoved = ".removed-";
constexpr std::size_t kDigits = 8;
constexpr std::size_t kMaxDigits = 18;  // fit into 64 bits

/// The number in a checkpoint's name; -1 for other names.
std::int64_t number_of(std::string_view name) {
  if (!name.starts_with(kCheckpoint)) return -1;
  name.remove_prefix(kCheckpoint.size());
  const bool is_number = name.size() >= kDigits && name.size() <= kMaxDigits &&
                         name.find_first_not_of("0123456789") == std::string_view::npos;
  return is_number ? std::stoll(std::string(name)) : -1;
}

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  const std::filesystem::directory_iterator end;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != end; entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error) throw_file_error("list folder", folder, error.value());
  return names;
}

/// Renames a folder and returns true, or returns false if it is missing. If several programs try,
/// one succeeds.
bool claim(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) == 0) return true;
  if (errno != ENOENT) throw_file_error("rename '" + from.string() + "' to", to);
  return false;
}

}  // namespace

std::filesystem::path checkpoint_name(std::int64_t number) {
  std::string digits = std::to_string(number);
  if (digits.size() < kDigits) digits.insert(0, kDigits - digits.size(), '0');
  return std::string(kCheckpoint) + digits;
}

std::vector<std::int64_t> list_checkpoints(const std::filesystem::path& folder) {
  std::vector<std::int64_t> numbers;
  for (const std::string& name : names_in(folder)) {
    if (number_of(name) >= 0) numbers.push_back(number_of(name));
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

std::filesystem::path begin_checkpoint(const std::filesystem::path& folder) {
  remove_leftovers(folder);
  // Random, so that a late rank of an abandoned attempt does not find its folder again.
  std::string name = std::string(kIncomplete) + std::to_string(std::random_device()());
  make_folder(folder / name);
  return name;
}

void publish_checkpoint(const std::filesystem::path& folder, const std::filesystem::path& name) {
  sync_folder(folder / name);
  for (;;) {
    const std::vector<std::int64_t> numbers = list_checkpoints(folder);
    const std::filesystem::path next =
        folder / checkpoint_name(numbers.empty() ? 1 : numbers.back() + 1);
    if (::rename((folder / name).c_str(), next.c_str()) == 0) break;
    // Another program has just published a checkpoint of this number.
    if (errno == ENOTEMPTY || errno == EEXIST) continue;
    throw_file_error("rename '" + (folder / name).string() + "' to", next);
  }
  sync_folder(folder);
}

void retire_checkpoints(const std::filesystem::path& folder, int keep_last) {
  std::vector<std::int64_t> numbers = list_checkpoints(folder);
  const std::size_t kept = std::min(numbers.size(), static_cast<std::size_t>(keep_last));
  numbers.resize(numbers.size() - kept);
  for (const std::int64_t number : numbers) {
    const std::filesystem::path name = checkpoint_name(number);
    claim(folder / name, folder / (std::string(kRemoved) + name.string()));
  }
  sync_folder(folder);
}

void remove_retired(const std::filesystem::path& folder, const std::string& file) {
  for (const std::string& name : names_in(folder)) {
    if (name.starts_with(kRemoved)) remove_tree(folder / name / file);
  }
}

void remove_leftovers(const std::filesystem::path& folder) {
  for (const std::string& name : names_in(folder)) {
    if (name.starts_with(kRemoved)) remove_tree(folder / name);
    if (!name.starts_with(kIncomplete)) continue;
    // If its program is still running, publish_checkpoint() fails there.
    const std::filesystem::path claimed = folder / (std::string(kRemoved) + name.substr(1));
    if (claim(folder / name, claimed)) remove_tree(claimed);
  }
}

}  // namespace kolo::train

#include "checkpoint/publish.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <random>
#include <string_view>
#include <system_error>
#include <utility>

#include "checkpoint/files.hpp"

namespace kolo::checkpoints {
namespace {

constexpr std::string_view kCheckpoint = "checkpoint-";
constexpr std::string_view kIncomplete = ".incomplete-";
constexpr std::string_view kRemoved = ".removed-";
constexpr std::string_view kDigitLetters = "0123456789";
constexpr std::size_t kDigits = 8;
constexpr std::size_t kMaxDigits = 18;  // fit into 64 bits

/// The number in a checkpoint's name; -1 for other names.
std::int64_t number_of(std::string_view name) {
  if (!name.starts_with(kCheckpoint)) return -1;
  name.remove_prefix(kCheckpoint.size());
  const bool is_number = name.size() >= kDigits && name.size() <= kMaxDigits &&
                         name.find_first_not_of(kDigitLetters) == std::string_view::npos;
  return is_number ? std::stoll(std::string(name)) : -1;
}

/// Whether what follows the prefix of a hidden name is "model", "12-model" for the name "model"; or
/// anything for no name.
bool is_of(std::string_view hidden, std::string_view name) {
  if (name.empty()) return true;
  if (!hidden.ends_with(name)) return false;
  hidden.remove_suffix(name.size());
  const std::size_t end = hidden.find_first_not_of(kDigitLetters);
  return hidden.empty() || (end == hidden.size() - 1 && hidden[end] == '-');
}

/// Renames to a hidden name under which it is only removed. Returns the new path; empty if another
/// program has renamed it.
std::filesystem::path claim(const std::filesystem::path& path, std::string_view name) {
  std::filesystem::path claimed = path.parent_path() / (std::string(kRemoved) + std::string(name));
  if (::rename(path.c_str(), claimed.c_str()) == 0) return claimed;
  if (errno != ENOENT) throw_file_error("rename '" + path.string() + "' to", claimed);
  return {};
}

}  // namespace

Draft::Draft(std::filesystem::path folder, const std::string& name)
    : folder_(std::move(folder)),
      path_(folder_ / (std::string(kIncomplete) + std::to_string(std::random_device()()) +
                       (name.empty() ? "" : "-") + name)) {}

Draft::~Draft() {
  std::error_code ignored;  // the next attempt removes it
  if (!is_published_) std::filesystem::remove_all(path_, ignored);
}

bool Draft::publish(const std::filesystem::path& name) {
  const std::filesystem::path published = folder_ / name;
  if (::rename(path_.c_str(), published.c_str()) != 0) {
    if (errno == ENOTEMPTY || errno == EEXIST || errno == EISDIR) return false;
    throw_file_error("rename '" + path_.string() + "' to", published);
  }
  is_published_ = true;
  sync_folder(folder_);
  return true;
}

std::string Draft::publish_as_next_checkpoint() {
  sync_folder(path_);
  for (;;) {
    const std::vector<std::int64_t> numbers = list_checkpoints(folder_);
    const std::filesystem::path name = checkpoint_name(numbers.empty() ? 1 : numbers.back() + 1);
    if (publish(name)) return name.string();
    // Another program has just published a checkpoint of this number.
  }
}

void remove_leftovers(const std::filesystem::path& folder, const std::string& name) {
  for (const std::string& entry : names_in(folder)) {
    const std::string_view hidden = entry;
    if (hidden.starts_with(kRemoved) && is_of(hidden.substr(kRemoved.size()), name)) {
      remove_tree(folder / entry);
    } else if (hidden.starts_with(kIncomplete) && is_of(hidden.substr(kIncomplete.size()), name)) {
      // If its program is still running, publish() fails there.
      const std::filesystem::path claimed =
          claim(folder / entry, hidden.substr(kIncomplete.size()));
      if (!claimed.empty()) remove_tree(claimed);
    }
  }
}

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

void retire_checkpoints(const std::filesystem::path& folder, int keep_last) {
  std::vector<std::int64_t> numbers = list_checkpoints(folder);
  const std::size_t kept = std::min(numbers.size(), static_cast<std::size_t>(keep_last));
  numbers.resize(numbers.size() - kept);
  for (const std::int64_t number : numbers) {
    const std::string name = checkpoint_name(number);
    claim(folder / name, name);
  }
  sync_folder(folder);
}

void remove_retired(const std::filesystem::path& folder, const std::string& file) {
  for (const std::string& name : names_in(folder)) {
    if (name.starts_with(kRemoved)) remove_tree(folder / name / file);
  }
}

}  // namespace kolo::checkpoints

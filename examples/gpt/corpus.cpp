#include "gpt/corpus.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string_view>
#include <system_error>

namespace gpt {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kHeldOutShare = 10;  // one in this many parts

constexpr std::size_t kMarkedBytes = 1024;  // a generator's mark is near the beginning

bool is_header(const fs::path& file) {
  const fs::path extension = file.extension();
  return extension == ".h" || extension == ".hpp" || extension == ".cuh";
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// By its name if its text does not say so.
bool is_generated(const fs::path& file) {
  const std::string name = file.generic_string();
  for (const char* part : {"/ATen/ops/", "/ATen/RegistrationDeclarations.h",
                           "/ATen/core/TensorBody.h", "Generated", "generated"}) {
    if (contains(name, part)) return true;
  }
  std::string beginning(kMarkedBytes, '\0');
  std::ifstream(file, std::ios::binary).read(beginning.data(), kMarkedBytes);
  return contains(beginning, "@generated");
}

std::vector<fs::path> in_byte_order(std::vector<fs::path> files) {
  std::ranges::sort(files, {}, [](const fs::path& file) { return file.generic_string(); });
  return files;
}

std::vector<fs::path> files_below(const fs::path& folder) {
  std::vector<fs::path> files;
  for (auto entry = fs::recursive_directory_iterator(folder); entry != fs::end(entry); ++entry) {
    if (entry->path().filename().generic_string().starts_with('.')) {
      if (entry->is_directory()) entry.disable_recursion_pending();
    } else if (entry->is_regular_file() && entry->file_size() > 0) {
      files.push_back(entry->path());
    }
  }
  if (files.empty()) throw std::runtime_error("no text in the folder " + folder.string());
  return in_byte_order(std::move(files));
}

std::string read_file(const fs::path& file) {
  const auto fail = [&](const std::string& why) {
    throw std::runtime_error("cannot read the text " + file.string() + ": " + why);
  };
  std::ifstream stream(file, std::ios::binary);
  if (!stream) fail(std::strerror(errno));
  std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  if (stream.bad()) fail(std::strerror(errno));
  if (text.empty()) fail("it is empty");
  return text;
}

void require_length(const std::string& text, const char* part, std::size_t min_bytes) {
  if (text.size() >= min_bytes) return;
  throw std::runtime_error("the text is too short: " + std::to_string(text.size()) + " bytes to " +
                           part + ", but the context needs " + std::to_string(min_bytes) +
                           "; give more text or a shorter --context");
}

}  // namespace

std::vector<fs::path> torch_headers(const fs::path& include_folder) {
  std::vector<fs::path> files;
  for (const char* part : {"ATen", "c10", "torch"}) {
    std::error_code unreadable;  // a missing folder has no headers
    for (const auto& entry : fs::recursive_directory_iterator(include_folder / part, unreadable)) {
      const fs::path& file = entry.path();
      if (entry.is_regular_file() && is_header(file) && !is_generated(file)) files.push_back(file);
    }
  }
  if (files.empty()) {
    throw std::runtime_error("no C++ headers in the folders ATen, c10 and torch of " +
                             include_folder.string() + "; name a text with --text");
  }
  return in_byte_order(std::move(files));
}

std::vector<fs::path> text_files(const std::vector<fs::path>& paths) {
  std::vector<fs::path> files;
  for (const fs::path& path : paths) {
    if (!fs::is_directory(path)) {
      files.push_back(path);
      continue;
    }
    for (fs::path& file : files_below(path)) files.push_back(std::move(file));
  }
  return files;
}

Corpus load_corpus(const std::vector<fs::path>& files, std::size_t min_bytes) {
  std::string text;
  std::vector<std::size_t> begins;  // of files in `text`
  for (const fs::path& file : files) {
    begins.push_back(text.size());
    text += read_file(file);
  }
  const std::size_t last_tenth = text.size() - text.size() / kHeldOutShare;
  const auto first_held_out = std::ranges::lower_bound(begins, last_tenth);
  const auto held_out_files = static_cast<std::size_t>(begins.end() - first_held_out);
  const std::size_t cut = held_out_files > 0 ? *first_held_out : last_tenth;

  Corpus corpus{.training = text.substr(0, cut),
                .held_out = text.substr(cut),
                .training_files = files.size() - held_out_files,
                .held_out_files = held_out_files};
  require_length(corpus.training, "train on", min_bytes);
  require_length(corpus.held_out, "hold out", min_bytes);
  return corpus;
}

}  // namespace gpt

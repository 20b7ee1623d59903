#include "gpt/corpus.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <system_error>

namespace gpt {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kHeldOutShare = 10;  // one part in so many

bool is_header(const fs::path& file) {
  const fs::path extension = file.extension();
  return extension == ".h" || extension == ".hpp" || extension == ".cuh";
}

std::string read_file(const fs::path& file) {
  const auto fail = [&](const std::string& why) {
    throw std::runtime_error("cannot read the text " + file.string() + ": " + why);
  };
  if (fs::is_directory(file)) fail("it is a folder; name the files in it");
  std::ifstream stream(file, std::ios::binary);
  if (!stream) fail(std::strerror(errno));
  std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  if (stream.bad()) fail(std::strerror(errno));
  if (text.empty()) fail("it is empty");
  return text;
}

void require_length(const std::string& text, const char* part, std::size_t least_bytes) {
  if (text.size() >= least_bytes) return;
  throw std::runtime_error("the text is too short: " + std::to_string(text.size()) + " bytes to " +
                           part + ", but the context needs " + std::to_string(least_bytes) +
                           "; give more text or a shorter --context");
}

}  // namespace

std::vector<fs::path> torch_headers(const fs::path& include_folder) {
  std::vector<fs::path> files;
  for (const char* part : {"ATen", "c10", "torch"}) {
    std::error_code unreadable;  // a folder that is not there has no headers
    for (const auto& entry : fs::recursive_directory_iterator(include_folder / part, unreadable)) {
      if (entry.is_regular_file() && is_header(entry.path())) files.push_back(entry.path());
    }
  }
  if (files.empty()) {
    throw std::runtime_error("no C++ headers in the folders ATen, c10 and torch of " +
                             include_folder.string() + "; name a text with --text");
  }
  std::ranges::sort(files, {}, [](const fs::path& file) { return file.generic_string(); });
  return files;
}

Corpus load_corpus(const std::vector<fs::path>& files, std::size_t least_bytes) {
  Corpus corpus;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const bool held_out = i % kHeldOutShare == kHeldOutShare - 1;
    (held_out ? corpus.held_out : corpus.training) += read_file(files[i]);
    ++(held_out ? corpus.held_out_files : corpus.training_files);
  }
  if (corpus.held_out_files == 0) {
    const std::size_t cut = corpus.training.size() - corpus.training.size() / kHeldOutShare;
    corpus.held_out = corpus.training.substr(cut);
    corpus.training.resize(cut);
  }
  require_length(corpus.training, "train on", least_bytes);
  require_length(corpus.held_out, "hold out", least_bytes);
  return corpus;
}

}  // namespace gpt

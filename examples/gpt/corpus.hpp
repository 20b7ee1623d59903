#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace gpt {

/// Text to learn from, and text to be judged by, which is never trained on.
struct Corpus {
  std::string training;
  std::string held_out;
  std::size_t training_files = 0;
  std::size_t held_out_files = 0;  ///< 0: the end of the joined text was held out
};

/// The files *.h, *.hpp and *.cuh in the folders ATen, c10 and torch of LibTorch's
/// `include_folder`, ordered by the bytes of their names, so the same on all machines.
/// Throws std::runtime_error when there are none.
std::vector<std::filesystem::path> torch_headers(const std::filesystem::path& include_folder);

/// Reads the files and holds a tenth of them out: the tenth, the twentieth and so on. Of fewer than
/// ten files, the last tenth of their joined bytes is held out instead.
/// Throws std::runtime_error, naming the file, for one that cannot be read or is empty, and when
/// either part has fewer than `least_bytes`.
Corpus load_corpus(const std::vector<std::filesystem::path>& files, std::size_t least_bytes);

}  // namespace gpt

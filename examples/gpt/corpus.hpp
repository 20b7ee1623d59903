#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace gpt {

/// Text for training, and held-out text for the test.
struct Corpus {
  std::string training;
  std::string held_out;
  std::size_t training_files = 0;
  std::size_t held_out_files = 0;  ///< 0: the end of the last file is held out
};

/// The handwritten files *.h, *.hpp and *.cuh in the folders ATen, c10 and torch of LibTorch's
/// `include_folder`, ordered by the bytes of their names, so the same on all machines. Generated
/// files are left out: thousands of them differ only in a name. Throws std::runtime_error when
/// there are none.
std::vector<std::filesystem::path> torch_headers(const std::filesystem::path& include_folder);

/// The files that `paths` name. A folder stands for all files in it and below, ordered by the bytes
/// of their names, except empty files and those whose names begin with a dot.
std::vector<std::filesystem::path> text_files(const std::vector<std::filesystem::path>& paths);

/// Reads the files and holds out the last tenth of their joined text, from the first file that
/// begins in it: files of one folder resemble one another, and at most one folder is split. If no
/// file begins in the last tenth, it is cut off the last file. Throws std::runtime_error, naming
/// the file, if one cannot be read or is empty, and if either part has fewer than `min_bytes`.
Corpus load_corpus(const std::vector<std::filesystem::path>& files, std::size_t min_bytes);

}  // namespace gpt

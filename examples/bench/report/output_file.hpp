#pragma once

#include <filesystem>
#include <string>

namespace bench {

/// A file that is written at the end, but found to be writable at the start.
class OutputFile {
 public:
  /// An empty path stands for no file. Throws kolo::InvalidArgument where it cannot be written.
  explicit OutputFile(std::filesystem::path path);
  OutputFile(const OutputFile&) = delete;  // it takes its empty file away once
  OutputFile& operator=(const OutputFile&) = delete;
  /// Leaves no file behind that was not there and has not been written.
  ~OutputFile();

  bool is_wanted() const { return !path_.empty(); }
  void write(const std::string& text);

 private:
  std::filesystem::path path_;
  bool is_new_and_empty_ = false;
};

}  // namespace bench

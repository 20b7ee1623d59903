#pragma once

#include <filesystem>
#include <string>

namespace examples {

/// A file that is written at the end, but tested for writing at the start.
class OutputFile {
 public:
  /// An empty path stands for no file.
  explicit OutputFile(std::filesystem::path path);
  OutputFile(const OutputFile&) = delete;  // it removes its empty file once
  OutputFile& operator=(const OutputFile&) = delete;
  /// Removes the file if it was created and never written.
  ~OutputFile();

  /// Why the file cannot be written; empty if it can.
  const std::string& error() const { return error_; }
  bool is_wanted() const { return !path_.empty(); }
  /// Throws kolo::InvalidArgument if it fails, as on a full disk.
  void write(const std::string& text);

 private:
  std::filesystem::path path_;
  std::string error_;
  bool is_new_and_empty_ = false;
};

}  // namespace examples

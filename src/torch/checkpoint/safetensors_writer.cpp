#include "torch/checkpoint/safetensors_writer.hpp"

#include <cstddef>
#include <random>
#include <string>
#include <string_view>
#include <system_error>

#include "kolo/error.hpp"
#include "torch/checkpoint/folders.hpp"
#include "torch/checkpoint/tensor_slice.hpp"

namespace kolo::train {
namespace {

constexpr std::string_view kUnfinished = ".incomplete-";

/// Whether `name` is that of an unfinished version of `file`, with or without a number.
bool is_leftover(std::string_view name, std::string_view file) {
  if (!name.starts_with(kUnfinished) || !name.ends_with(file)) return false;
  name.remove_prefix(kUnfinished.size());
  if (name.size() < file.size()) return false;
  name.remove_suffix(file.size());
  const std::size_t end = name.find_first_not_of("0123456789");
  return name.empty() || (end == name.size() - 1 && name[end] == '-');
}

/// Removes the files of earlier attempts. An attempt that is still running fails in close().
void remove_leftovers(const std::filesystem::path& folder, const std::string& file) {
  std::error_code error;
  const std::filesystem::directory_iterator end;
  std::filesystem::directory_iterator entry(folder.empty() ? "." : folder, error);
  for (; !error && entry != end; entry.increment(error)) {
    if (is_leftover(entry->path().filename().string(), file)) remove_tree(entry->path());
  }
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     const std::vector<SafetensorsTensor>& tensors)
    : path_(path) {
  const std::string header = encode_safetensors_header(tensors);
  for (const SafetensorsTensor& tensor : tensors) {
    missing_bytes_ += bytes_of(tensor.dtype, elements_of(tensor.shape).value());
  }
  const std::string name = path.filename().string();
  // Random, so that programs that write the same file never publish each other's unfinished one.
  incomplete_ = path.parent_path() /
                (std::string(kUnfinished) + std::to_string(std::random_device()()) + "-" + name);
  if (path.has_parent_path()) make_folder(path.parent_path());
  remove_leftovers(path.parent_path(), name);
  file_ = std::make_unique<FileWriter>(incomplete_,
                                       static_cast<std::int64_t>(header.size()) + missing_bytes_);
  file_->append(header.data(), header.size());
}

SafetensorsWriter::~SafetensorsWriter() {
  std::error_code ignored;  // the next attempt removes it
  if (file_ != nullptr) std::filesystem::remove(incomplete_, ignored);
}

void SafetensorsWriter::append(const void* data, std::size_t bytes) {
  if (static_cast<std::int64_t>(bytes) > missing_bytes_) {
    throw InvalidArgument("file '" + path_.string() + "': " + std::to_string(bytes) +
                          " bytes were appended, its tensors have only " +
                          std::to_string(missing_bytes_) + " more");
  }
  file_->append(data, bytes);
  missing_bytes_ -= static_cast<std::int64_t>(bytes);
}

void SafetensorsWriter::close() {
  if (missing_bytes_ > 0) {
    throw InvalidArgument("file '" + path_.string() + "': its tensors have " +
                          std::to_string(missing_bytes_) + " bytes more than were appended");
  }
  file_->sync();
  rename_durably(incomplete_, path_);
  file_.reset();
}

}  // namespace kolo::train

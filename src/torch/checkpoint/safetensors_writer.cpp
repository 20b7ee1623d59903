#include "torch/checkpoint/safetensors_writer.hpp"

#include <string>
#include <system_error>

#include "kolo/error.hpp"
#include "torch/checkpoint/folders.hpp"
#include "torch/checkpoint/tensor_slice.hpp"

namespace kolo::tensors {

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     const std::vector<SafetensorsTensor>& tensors,
                                     const SafetensorsMetadata& metadata)
    : path_(path) {
  const std::string header = encode_safetensors_header(tensors, metadata);
  for (const SafetensorsTensor& tensor : tensors) {
    missing_bytes_ += bytes_of(tensor.dtype, elements_of(tensor.shape).value());
  }
  incomplete_ = path.parent_path() / (".incomplete-" + path.filename().string());
  if (path.has_parent_path()) make_folder(path.parent_path());
  remove_tree(incomplete_);  // of an attempt that died
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

}  // namespace kolo::tensors

#include "torch/checkpoint/checkpoint.hpp"

#include <algorithm>
#include <optional>
#include <system_error>
#include <vector>

#include "kolo/error.hpp"
#include "torch/checkpoint/checkpoint_folder.hpp"
#include "torch/checkpoint/checkpoint_index.hpp"
#include "torch/checkpoint/file_reader.hpp"
#include "torch/checkpoint/safetensors_files.hpp"
#include "torch/checkpoint/tensor_slice.hpp"

namespace kolo::train {
namespace {

/// The name of the newest checkpoint in `path`; empty if `path` is a checkpoint itself.
std::string choose(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::exists(path / kIndexName, error)) return {};
  if (!std::filesystem::exists(path, error)) {
    throw InvalidArgument("there is no folder of that name");
  }
  if (!std::filesystem::is_directory(path, error)) throw InvalidArgument("it is not a folder");
  const std::vector<std::int64_t> numbers = list_checkpoints(path);
  if (numbers.empty()) {
    throw InvalidArgument("there is no checkpoint in it: neither " + std::string(kIndexName) +
                          " nor a folder such as " + checkpoint_name(1).string() +
                          "; nor a model: " + std::string(kModelName) + " or " +
                          std::string(kModelIndexName));
  }
  return checkpoint_name(numbers.back()).string();
}

/// The folder that programs lock when they save checkpoints beside `path` or into it.
std::filesystem::path folder_of(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(path / kIndexName, error) ? path / ".." : path;
}

CheckpointIndex read_index(const std::filesystem::path& path) {
  const FileReader file(path / kIndexName);
  if (file.size() > kMaxIndexBytes) {
    throw InvalidArgument("file '" + file.path().string() + "' has " + std::to_string(file.size()) +
                          " bytes, more than a checkpoint index may have");
  }
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  file.read(0, file.size(), text.data());
  try {
    CheckpointIndex index = parse_index(text);
    require_whole(index);
    return index;
  } catch (const InvalidArgument& error) {
    throw InvalidArgument("file '" + file.path().string() +
                          "' is not a valid checkpoint index: " + error.what());
  }
}

}  // namespace

bool has_checkpoint(const std::filesystem::path& folder) {
  std::error_code error;
  return std::filesystem::exists(folder / kIndexName, error) || !list_checkpoints(folder).empty();
}

Checkpoint::Checkpoint(const std::filesystem::path& path, const Readers& readers) {
  const std::string what = "opening checkpoint '" + path.string() + "'";
  const std::string chosen =
      readers
          .run(".choose", what,
               [&] {
                 if (readers.rank() != 0) return std::string();
                 lock_.emplace(folder_of(path), FolderLock::Kind::Load, readers.timeout() / 2);
                 return choose(path);
               })
          .front();
  path_ = chosen.empty() ? path : path / chosen;
  readers.run(".open", what, [&] {
    index_ = read_index(path_);
    const std::size_t step = static_cast<std::size_t>(readers.size());
    for (std::size_t i = static_cast<std::size_t>(readers.rank()); i < index_.files.size();
         i += step) {
      BlockReader(path_, index_.files[i]).verify_header();
    }
  });
}

void Checkpoint::verify(const std::string& name, DType dtype, std::int64_t begin,
                        std::int64_t count) const {
  visit(name, dtype, begin, count, nullptr);
}

void Checkpoint::read(const std::string& name, DType dtype, std::int64_t begin,
                      std::span<std::byte> target) const {
  visit(name, dtype, begin, elements_in(target, dtype), target.data());
}

void Checkpoint::visit(const std::string& name, DType dtype, std::int64_t begin, std::int64_t count,
                       std::byte* target) const {
  const std::string what = "checkpoint '" + path_.string() + "': tensor '" + name + "' ";
  const auto found = tensors().find(name);
  if (found == tensors().end()) throw InvalidArgument(what + "is not in it");
  const Tensor& tensor = found->second;
  try {
    require_range(tensor.dtype, tensor.shape, dtype, begin, count);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(what + error.what());
  }
  std::byte* place = target;
  for (const CheckpointIndex::Slice& slice : tensor.slices) {
    const std::int64_t first = std::max(begin, slice.begin);
    const std::int64_t taken = std::min(begin + count, slice.begin + slice.count) - first;
    if (taken <= 0) continue;
    const std::int64_t bytes = bytes_of(tensor.dtype, taken);
    const std::int64_t offset = slice.offset + bytes_of(tensor.dtype, first - slice.begin);
    try {
      open(slice.file).read(offset, bytes, place);
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(what + "cannot be read: " + error.what());
    }
    if (place != nullptr) place += bytes;
  }
}

BlockReader& Checkpoint::open(std::size_t file) const {
  if (reader_ == nullptr || open_file_ != file) {
    reader_.reset();
    reader_ = std::make_unique<BlockReader>(path_, index_.files[file]);
    open_file_ = file;
  }
  return *reader_;
}

}  // namespace kolo::train

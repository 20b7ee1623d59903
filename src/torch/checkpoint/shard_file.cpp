#include "torch/checkpoint/shard_file.hpp"

#include <algorithm>
#include <optional>

#include "kolo/error.hpp"
#include "torch/checkpoint/block_checksums.hpp"
#include "torch/checkpoint/file_writer.hpp"
#include "torch/checkpoint/safetensors_header.hpp"

namespace kolo::train {
namespace {

// Bytes per write: few enough to still be in the cache after computing their checksum.
constexpr std::int64_t kPieceBytes = std::int64_t{1} << 20;

std::string name_in_file(const TensorSlice& slice) {
  if (slice.count == elements_of(slice.shape)) return slice.name;
  return slice.name + "[" + std::to_string(slice.begin) + ":" +
         std::to_string(slice.begin + slice.count) + "]";
}

void require_valid(const TensorSlice& slice) {
  const std::optional<std::int64_t> elements = elements_of(slice.shape);
  const std::string tensor = "tensor '" + slice.name + "'";
  if (!elements) throw InvalidArgument(tensor + " has an impossible shape");
  if (slice.begin < 0 || slice.count < 0 || slice.begin > *elements ||
      slice.count > *elements - slice.begin) {
    throw InvalidArgument(tensor + " has " + std::to_string(*elements) + " elements, but " +
                          std::to_string(slice.count) + " from " + std::to_string(slice.begin) +
                          " on were given");
  }
  if (slice.count > 0 && slice.data == nullptr && !slice.copy_to)
    throw InvalidArgument(tensor + " has no data");
}

std::string header_of(const std::vector<TensorSlice>& slices) {
  std::vector<SafetensorsTensor> tensors;
  for (const TensorSlice& slice : slices) {
    tensors.push_back({name_in_file(slice), slice.dtype, {slice.count}});
  }
  return encode_safetensors_header(tensors);
}

}  // namespace

ShardFile::ShardFile(const std::vector<TensorSlice>& slices) : all_(slices) {
  for (const TensorSlice& slice : all_) {
    require_valid(slice);
    if (slice.count > 0) written_.push_back(slice);
  }
  // Large elements first, so that all are aligned in the file.
  std::stable_sort(written_.begin(), written_.end(), [](const auto& a, const auto& b) {
    return size_of(a.dtype) > size_of(b.dtype);
  });
  header_ = header_of(written_);
}

std::map<std::string, CheckpointIndex::Tensor> ShardFile::tensors() const {
  std::map<std::string, CheckpointIndex::Tensor> tensors;
  for (const TensorSlice& slice : all_) {
    const auto [place, is_new] =
        tensors.try_emplace(slice.name, CheckpointIndex::Tensor{slice.dtype, slice.shape, {}});
    const CheckpointIndex::Tensor& tensor = place->second;
    if (tensor.dtype != slice.dtype || tensor.shape != slice.shape) {
      throw InvalidArgument("tensor '" + slice.name + "' was given with two dtypes or shapes");
    }
  }
  std::int64_t offset = 0;
  for (const TensorSlice& slice : written_) {
    tensors.at(slice.name).slices.push_back({0, slice.begin, slice.count, offset});
    offset += bytes_of(slice.dtype, slice.count);
  }
  return tensors;
}

CheckpointIndex::File ShardFile::write(const std::filesystem::path& path) const {
  CheckpointIndex::File about{path.filename().string(),
                              0,
                              static_cast<std::int64_t>(header_.size()),
                              checksum_of(header_.data(), header_.size()),
                              {}};
  about.bytes = about.header_bytes;
  for (const TensorSlice& slice : written_) about.bytes += bytes_of(slice.dtype, slice.count);
  FileWriter file(path, about.bytes);
  file.append(header_.data(), header_.size());
  BlockChecksums checksums;
  std::vector<std::byte> copied;
  for (const TensorSlice& slice : written_) {
    const std::int64_t bytes = bytes_of(slice.dtype, slice.count);
    for (std::int64_t done = 0; done < bytes; done += kPieceBytes) {
      const std::size_t size = static_cast<std::size_t>(std::min(kPieceBytes, bytes - done));
      const std::byte* piece = static_cast<const std::byte*>(slice.data) + done;
      if (slice.copy_to) {
        copied.resize(size);
        slice.copy_to(static_cast<std::size_t>(done), copied);
        piece = copied.data();
      }
      checksums.append(piece, size);
      file.append(piece, size);
    }
  }
  file.sync();
  about.block_checksums = checksums.finish();
  return about;
}

}  // namespace kolo::train

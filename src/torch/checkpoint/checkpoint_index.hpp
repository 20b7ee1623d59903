#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "kolo/dtype.hpp"

namespace kolo::train {

inline constexpr std::string_view kIndexName = "index.json";
/// Far more than any checkpoint needs, and little enough to read into memory.
inline constexpr std::int64_t kMaxIndexBytes = std::int64_t{1} << 30;

/// The contents of a checkpoint's index.json: where the elements of all tensors are.
struct CheckpointIndex {
  struct File {
    std::string name;
    std::int64_t bytes = 0;
    std::int64_t header_bytes = 0;  ///< before the data
    std::uint64_t header_checksum = 0;
    std::vector<std::uint64_t> block_checksums;  ///< of the data, see kBlockBytes

    std::int64_t data_bytes() const { return bytes - header_bytes; }
  };
  struct Slice {
    std::size_t file = 0;  ///< index into `files`
    std::int64_t begin = 0;
    std::int64_t count = 0;
    std::int64_t offset = 0;  ///< in bytes, from the beginning of the file's data
  };
  struct Tensor {
    DType dtype = DType::Float32;
    std::vector<std::int64_t> shape;
    std::vector<Slice> slices;  ///< in the order of elements; none is empty
  };
  std::vector<File> files;
  std::map<std::string, Tensor> tensors;
  nlohmann::json details = nlohmann::json::object();
};

/// The index as text with a checksum of itself, and the inverse. `parse_index` throws
/// InvalidArgument, naming the tensor, for a wrong checksum, other formats and versions, fields
/// that are missing or of another type, and slices outside their file.
std::string encode_index(const CheckpointIndex& index);
CheckpointIndex parse_index(const std::string& text);

/// Merges the indexes of the ranks' files into that of the checkpoint. Details are merged
/// recursively; if several ranks have a key, the last rank's value is kept. Throws MismatchError,
/// naming tensor and files, if ranks disagree about a tensor's dtype or shape.
CheckpointIndex merge_indexes(std::vector<CheckpointIndex> parts);

/// Throws InvalidArgument, naming tensor, elements and files, unless every tensor's slices contain
/// each of its elements once, in order.
void require_whole(const CheckpointIndex& index);

/// Throws InvalidArgument if the checkpoint `path` has no such tensor, or one of another dtype or
/// shape than the program's; names both.
void require_tensor(const CheckpointIndex& index, const std::filesystem::path& path,
                    const std::string& name, DType dtype, const std::vector<std::int64_t>& shape);

}  // namespace kolo::train

#include "torch/checkpoint/checkpoint_index.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "kolo/error.hpp"
#include "torch/checkpoint/block_checksums.hpp"
#include "torch/checkpoint/json_fields.hpp"
#include "torch/checkpoint/printable.hpp"
#include "torch/checkpoint/safetensors_header.hpp"
#include "torch/checkpoint/tensor_slice.hpp"

namespace kolo::train {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kFormat = "kolo checkpoint";
constexpr std::uint64_t kVersion = 1;
constexpr std::string_view kFileNameLetters =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";

Json to_json(const CheckpointIndex::File& file) {
  return {{"name", file.name},
          {"bytes", file.bytes},
          {"header_bytes", file.header_bytes},
          {"header_checksum", file.header_checksum},
          {"block_checksums", file.block_checksums}};
}

Json to_json(const CheckpointIndex::Tensor& tensor) {
  Json slices = Json::array();
  for (const auto& [file, begin, count, offset] : tensor.slices) {
    slices.push_back({{"file", file}, {"begin", begin}, {"count", count}, {"offset", offset}});
  }
  return {{"dtype", safetensors_name(tensor.dtype)}, {"shape", tensor.shape}, {"slices", slices}};
}

CheckpointIndex::File to_file(const Json& json) {
  CheckpointIndex::File file{json.at("name").get<std::string>(),
                             to_count(json.at("bytes")),
                             to_count(json.at("header_bytes")),
                             to_unsigned(json.at("header_checksum")),
                             {}};
  for (const Json& checksum : json.at("block_checksums")) {
    file.block_checksums.push_back(to_unsigned(checksum));
  }
  // Only names that Kolo gives to files: they become part of paths and error texts.
  if (file.name.empty() || file.name.front() == '.' ||
      file.name.find_first_not_of(kFileNameLetters) != std::string::npos) {
    throw InvalidArgument("a file is named '" + printable(file.name) + "'");
  }
  const std::int64_t blocks =
      file.data_bytes() / kBlockBytes + (file.data_bytes() % kBlockBytes > 0);
  if (file.data_bytes() < 0 || file.block_checksums.size() != static_cast<std::size_t>(blocks)) {
    throw InvalidArgument("file '" + file.name + "' has " +
                          std::to_string(file.block_checksums.size()) + " checksums for " +
                          std::to_string(file.data_bytes()) + " bytes");
  }
  return file;
}

CheckpointIndex::Slice to_slice(const Json& json, DType dtype, const CheckpointIndex& index) {
  const CheckpointIndex::Slice slice{static_cast<std::size_t>(to_unsigned(json.at("file"))),
                                     to_count(json.at("begin")), to_count(json.at("count")),
                                     to_count(json.at("offset"))};
  if (slice.file >= index.files.size()) {
    throw InvalidArgument("file number " + std::to_string(slice.file) + " is not listed");
  }
  const CheckpointIndex::File& file = index.files[slice.file];
  const std::int64_t size = static_cast<std::int64_t>(size_of(dtype));
  if (slice.count == 0 || slice.offset > file.data_bytes() ||
      slice.count > (file.data_bytes() - slice.offset) / size) {
    throw InvalidArgument(std::to_string(slice.count) + " elements at byte " +
                          std::to_string(slice.offset) + " are not in file '" + file.name + "'");
  }
  return slice;
}

CheckpointIndex::Tensor to_tensor(const Json& json, const CheckpointIndex& index) {
  const std::string dtype_name = json.at("dtype").get<std::string>();
  const std::optional<DType> dtype = dtype_from_safetensors(dtype_name);
  if (!dtype) throw InvalidArgument("its dtype is " + dtype_name);
  CheckpointIndex::Tensor tensor{*dtype, to_counts(json.at("shape")), {}};
  for (const Json& slice : json.at("slices")) {
    tensor.slices.push_back(to_slice(slice, *dtype, index));
  }
  return tensor;
}

/// The first line holds the checksum of all other lines.
std::uint64_t checksum_below_first_line(const std::string& text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  return checksum_of(text.data() + end, text.size() - end);
}

void require_format(const Json& json, const std::string& text) {
  if (json.at("format") != kFormat) throw InvalidArgument("its format is another one");
  const std::uint64_t version = to_unsigned(json.at("version"));
  if (version != kVersion) {
    throw InvalidArgument("it has version " + std::to_string(version) +
                          " of the format; this Kolo " + "reads version " +
                          std::to_string(kVersion));
  }
  if (to_unsigned(json.at("checksum")) != checksum_below_first_line(text)) {
    throw InvalidArgument("it is damaged: its checksum differs");
  }
}

std::string range_of(std::int64_t begin, std::int64_t end) {
  return "elements " + std::to_string(begin) + " to " + std::to_string(end - 1);
}

std::string kind_of(const CheckpointIndex::Tensor& tensor) {
  return text_of(tensor.dtype, tensor.shape);
}

void require_whole(const CheckpointIndex& index, const CheckpointIndex::Tensor& tensor) {
  const std::optional<std::int64_t> elements = elements_of(tensor.shape);
  if (!elements) throw InvalidArgument("its shape is impossible");
  std::int64_t end = 0;
  std::string last;
  for (const CheckpointIndex::Slice& slice : tensor.slices) {
    const std::string& file = index.files.at(slice.file).name;
    if (slice.begin < end) {
      throw InvalidArgument(range_of(slice.begin, std::min(end, slice.begin + slice.count)) +
                            " are in " + last + " and in " + file);
    }
    if (slice.begin > end) throw InvalidArgument(range_of(end, slice.begin) + " are in no file");
    end = slice.begin + slice.count;
    last = file;
  }
  if (end < *elements) throw InvalidArgument(range_of(end, *elements) + " are in no file");
  if (end > *elements) {
    throw InvalidArgument(kind_of(tensor) + " has no " + range_of(*elements, end) +
                          ", but they are in " + last);
  }
}

void merge_tensor(CheckpointIndex& whole, const std::string& name, CheckpointIndex::Tensor part,
                  std::size_t first_file) {
  const auto [place, is_new] =
      whole.tensors.try_emplace(name, CheckpointIndex::Tensor{part.dtype, part.shape, {}});
  CheckpointIndex::Tensor& tensor = place->second;
  if (tensor.dtype != part.dtype || tensor.shape != part.shape) {
    throw MismatchError("tensor '" + name + "' is " + kind_of(tensor) +
                        " on a rank before that of " + whole.files.back().name + ", where it is " +
                        kind_of(part));
  }
  for (CheckpointIndex::Slice& slice : part.slices) {
    slice.file += first_file;
    tensor.slices.push_back(slice);
  }
}

}  // namespace

std::string encode_index(const CheckpointIndex& index) {
  Json files = Json::array();
  for (const CheckpointIndex::File& file : index.files) files.push_back(to_json(file));
  Json tensors = Json::object();
  for (const auto& [name, tensor] : index.tensors) tensors[name] = to_json(tensor);
  const std::string rest = "\n\"files\":" + files.dump() + ",\n\"tensors\":" + tensors.dump() +
                           ",\n\"details\":" + index.details.dump() + "}\n";
  return "{\"format\":\"" + std::string(kFormat) + "\",\"version\":" + std::to_string(kVersion) +
         ",\"checksum\":" + std::to_string(checksum_of(rest.data(), rest.size())) + "," + rest;
}

CheckpointIndex parse_index(const std::string& text) {
  CheckpointIndex index;
  std::string where;
  try {
    Json json = parse_json(text);
    require_format(json, text);
    for (const Json& file : json.at("files")) index.files.push_back(to_file(file));
    for (const auto& [name, tensor] : json.at("tensors").items()) {
      where = "tensor '" + printable(name) + "': ";
      index.tensors.emplace(name, to_tensor(tensor, index));
    }
    where.clear();
    index.details = std::move(json.at("details"));
  } catch (const Json::exception& error) {
    throw InvalidArgument(where + error.what());
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(where + error.what());
  }
  return index;
}

CheckpointIndex merge_indexes(std::vector<CheckpointIndex> parts) {
  CheckpointIndex whole;
  for (CheckpointIndex& part : parts) {
    const std::size_t first_file = whole.files.size();
    whole.files.insert(whole.files.end(), part.files.begin(), part.files.end());
    for (auto& [name, tensor] : part.tensors) {
      merge_tensor(whole, name, std::move(tensor), first_file);
    }
    whole.details.update(part.details, /*merge_objects=*/true);
  }
  for (auto& [name, tensor] : whole.tensors) {
    std::sort(tensor.slices.begin(), tensor.slices.end(),
              [](const auto& a, const auto& b) { return a.begin < b.begin; });
  }
  return whole;
}

void require_whole(const CheckpointIndex& index) {
  for (const auto& [name, tensor] : index.tensors) {
    try {
      require_whole(index, tensor);
    } catch (const InvalidArgument& error) {
      throw InvalidArgument("tensor '" + name + "': " + error.what());
    }
  }
}

void require_tensor(const CheckpointIndex& index, const std::filesystem::path& path,
                    const std::string& name, DType dtype, const std::vector<std::int64_t>& shape) {
  const auto found = index.tensors.find(name);
  if (found == index.tensors.end()) {
    throw InvalidArgument("the checkpoint " + path.string() + " has no '" + name + "'");
  }
  const CheckpointIndex::Tensor& saved = found->second;
  if (saved.dtype == dtype && saved.shape == shape) return;
  throw InvalidArgument("'" + name + "' is " + kind_of(saved) + " in the checkpoint " +
                        path.string() + ", but " + text_of(dtype, shape) + " in the program");
}

}  // namespace kolo::train

#include "checkpoint/checkpoint.hpp"

#include <algorithm>
#include <cstring>
#include <system_error>
#include <utility>

#include "checkpoint/checksums.hpp"
#include "checkpoint/files.hpp"
#include "checkpoint/publish.hpp"
#include "checkpoint/safetensors.hpp"
#include "checkpoint/untrusted_text.hpp"
#include "kolo/error.hpp"

namespace kolo::checkpoints {
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
  try {
    CheckpointIndex index = parse_index(file.read_text(kMaxIndexBytes));
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

/// Reads a file's data in blocks and verifies their checksums. Throws InvalidArgument, naming
/// the file, if it is missing, has another size or is damaged; BackendError if the system cannot
/// read it.
class Checkpoint::BlockReader {
 public:
  /// The file of that name in `folder`. `about` must outlive this.
  BlockReader(const std::filesystem::path& folder, const CheckpointIndex::File& about);

  void verify_header() const;
  /// Copies bytes of the data, from `offset` on, to `target`; null: only verifies them.
  void read(std::int64_t offset, std::int64_t bytes, void* target);

 private:
  std::int64_t block_bytes(std::int64_t block) const {
    return std::min(kBlockBytes, about_.data_bytes() - block * kBlockBytes);
  }
  void read_block(std::int64_t block, void* target) const;

  const CheckpointIndex::File& about_;
  FileReader file_;
  std::int64_t held_ = -1;  // the block in `block_`: many small tensors lie in one
  std::vector<std::byte> block_;
};

Checkpoint::BlockReader::BlockReader(const std::filesystem::path& folder,
                                     const CheckpointIndex::File& about)
    : about_(about), file_(folder / about.name) {
  if (file_.size() == about.bytes) return;
  throw InvalidArgument(
      "file '" + file_.path().string() + "' has " + std::to_string(file_.size()) +
      " bytes instead of " + std::to_string(about.bytes) +
      (file_.size() < about.bytes ? ": it is truncated" : ": it is another file"));
}

void Checkpoint::BlockReader::verify_header() const {
  std::vector<std::byte> header(static_cast<std::size_t>(about_.header_bytes));
  file_.read(0, about_.header_bytes, header.data());
  if (checksum_of(header.data(), header.size()) == about_.header_checksum) return;
  throw InvalidArgument("file '" + file_.path().string() +
                        "' is damaged or another file: the checksum of its header differs");
}

void Checkpoint::BlockReader::read(std::int64_t offset, std::int64_t bytes, void* target) {
  std::byte* place = static_cast<std::byte*>(target);
  while (bytes > 0) {
    const std::int64_t block = offset / kBlockBytes;
    const std::int64_t start = offset % kBlockBytes;
    const std::int64_t size = block_bytes(block);
    const std::int64_t taken = std::min(bytes, size - start);
    if (place != nullptr && taken == size) {
      read_block(block, place);
    } else {
      if (block != held_) {
        held_ = -1;
        block_.resize(static_cast<std::size_t>(size));
        read_block(block, block_.data());
        held_ = block;
      }
      if (place != nullptr) {
        std::memcpy(place, block_.data() + start, static_cast<std::size_t>(taken));
      }
    }
    if (place != nullptr) place += taken;
    offset += taken;
    bytes -= taken;
  }
}

void Checkpoint::BlockReader::read_block(std::int64_t block, void* target) const {
  const std::int64_t begin = about_.header_bytes + block * kBlockBytes;
  const std::int64_t size = block_bytes(block);
  file_.read(begin, size, target);
  const std::uint64_t expected = about_.block_checksums[static_cast<std::size_t>(block)];
  if (checksum_of(target, static_cast<std::size_t>(size)) == expected) return;
  throw InvalidArgument("file '" + file_.path().string() + "' is damaged between bytes " +
                        std::to_string(begin) + " and " + std::to_string(begin + size - 1) +
                        ": their checksum differs");
}

Checkpoint::Checkpoint(const std::filesystem::path& path, const Ranks& ranks) {
  const std::string what = "opening checkpoint '" + path.string() + "'";
  const std::string chosen =
      ranks
          .run(".choose", what,
               [&] {
                 if (ranks.rank() != 0) return std::string();
                 lock_.emplace(folder_of(path), FolderLock::Kind::Load, ranks.timeout() / 2);
                 return choose(path);
               })
          .front();
  path_ = chosen.empty() ? path : path / chosen;
  ranks.run(".open", what, [&] {
    index_ = read_index(path_);
    const std::size_t step = static_cast<std::size_t>(ranks.size());
    for (std::size_t i = static_cast<std::size_t>(ranks.rank()); i < index_.files.size();
         i += step) {
      BlockReader(path_, index_.files[i]).verify_header();
    }
  });
}

Checkpoint::~Checkpoint() = default;

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

Checkpoint::BlockReader& Checkpoint::open(std::size_t file) const {
  if (reader_ == nullptr || open_file_ != file) {
    reader_.reset();
    reader_ = std::make_unique<BlockReader>(path_, index_.files[file]);
    open_file_ = file;
  }
  return *reader_;
}

}  // namespace kolo::checkpoints

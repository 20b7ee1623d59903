#include "checkpoint/new_checkpoint.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <system_error>

#include "checkpoint/checksums.hpp"
#include "checkpoint/files.hpp"
#include "checkpoint/folder_lock.hpp"
#include "checkpoint/publish.hpp"
#include "checkpoint/safetensors.hpp"
#include "kolo/error.hpp"

namespace kolo::checkpoints {
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

/// JSON cannot hold infinite numbers, nor text that is not UTF-8.
void require_storable(const nlohmann::json& details) {
  if (!details.is_object()) throw InvalidArgument("its details are not a JSON object");
  nlohmann::json stored;
  try {
    stored = nlohmann::json::parse(details.dump());
  } catch (const nlohmann::json::exception& error) {
    throw InvalidArgument(std::string("JSON cannot hold its details: ") + error.what());
  }
  if (stored == details) return;
  throw InvalidArgument("JSON cannot hold the value of its details at " +
                        nlohmann::json::diff(stored, details).at(0).at("path").get<std::string>() +
                        ", such as a number that is not finite");
}

std::string facts_of(const std::filesystem::path& folder, int keep_last) {
  if (keep_last < 0) throw InvalidArgument("keep_last is " + std::to_string(keep_last));
  return "into '" + folder.string() + "' with keep_last = " + std::to_string(keep_last);
}

/// Throws unless all ranks have the same facts. Returns the text that the first rank appended.
std::string require_same(const std::vector<std::string>& facts, const Ranks& ranks) {
  const std::size_t end = facts[0].find('\0');
  for (std::size_t i = 1; i < facts.size(); ++i) {
    if (facts[i] == facts[0].substr(0, end)) continue;
    throw MismatchError("saving a checkpoint: ranks disagree: " + facts[i] + " on rank " +
                        std::to_string(ranks.world_rank(i)) + ", " + facts[0].substr(0, end) +
                        " on rank " + std::to_string(ranks.world_rank(0)) +
                        ". Give the same on every rank.");
  }
  return facts[0].substr(end + 1);
}

/// Merges the parts of an index that the ranks have encoded.
CheckpointIndex whole_index(const std::vector<std::string>& parts) {
  std::vector<CheckpointIndex> indexes;
  for (const std::string& part : parts) indexes.push_back(parse_index(part));
  CheckpointIndex index = merge_indexes(std::move(indexes));
  require_whole(index);
  return index;
}

std::string rank_file_name(int rank) {
  std::string digits = std::to_string(rank);
  if (digits.size() < 4) digits.insert(0, 4 - digits.size(), '0');
  return "rank-" + digits + ".safetensors";
}

}  // namespace

/// The file that one rank writes: a safetensors file of its slices, each a tensor of one dimension
/// named like the whole tensor or, if it is a part of it, "name[begin:end]". Empty slices are left
/// out.
class NewCheckpoint::RankFile {
 public:
  /// Throws InvalidArgument, naming the tensor, if a slice is not within its tensor or two slices
  /// have the same name.
  explicit RankFile(const std::vector<TensorSlice>& slices) : all_(slices) {
    for (const TensorSlice& slice : all_) {
      require_valid(slice);
      if (slice.count > 0) written_.push_back(slice);
    }
    // Large elements first, so that all are aligned in the file.
    std::stable_sort(written_.begin(), written_.end(), [](const auto& a, const auto& b) {
      return size_of(a.dtype) > size_of(b.dtype);
    });
    std::vector<SafetensorsTensor> tensors;
    for (const TensorSlice& slice : written_) {
      tensors.push_back({name_in_file(slice), slice.dtype, {slice.count}});
    }
    header_ = encode_safetensors_header(tensors);
  }

  /// Of this file alone, which will have this name; with zeros as checksums of its blocks.
  CheckpointIndex index(const std::string& name) const {
    std::map<std::string, CheckpointIndex::Tensor> tensors = tensors_without_slices();
    CheckpointIndex::File file{name,
                               0,
                               static_cast<std::int64_t>(header_.size()),
                               checksum_of(header_.data(), header_.size()),
                               {}};
    std::int64_t offset = 0;
    for (const TensorSlice& slice : written_) {
      tensors.at(slice.name).slices.push_back({0, slice.begin, slice.count, offset});
      offset += bytes_of(slice.dtype, slice.count);
    }
    file.bytes = file.header_bytes + offset;
    file.block_checksums.resize(static_cast<std::size_t>((offset + kBlockBytes - 1) / kBlockBytes));
    return {{file}, tensors};
  }

  /// Writes a new file and blocks until it is on the disk. Returns the checksums of its blocks.
  auto write(const std::filesystem::path& path, std::int64_t bytes) const {
    FileWriter writer(path, bytes);
    writer.append(header_.data(), header_.size());
    BlockChecksums checksums;
    for (const TensorSlice& slice : written_) append(slice, writer, checksums);
    writer.sync();
    return checksums.finish();
  }

 private:
  std::map<std::string, CheckpointIndex::Tensor> tensors_without_slices() const {
    std::map<std::string, CheckpointIndex::Tensor> tensors;
    for (const TensorSlice& slice : all_) {
      const auto [place, is_new] =
          tensors.try_emplace(slice.name, CheckpointIndex::Tensor{slice.dtype, slice.shape, {}});
      const CheckpointIndex::Tensor& tensor = place->second;
      if (tensor.dtype != slice.dtype || tensor.shape != slice.shape) {
        throw InvalidArgument("tensor '" + slice.name + "' was given with two dtypes or shapes");
      }
    }
    return tensors;
  }

  static void append(const TensorSlice& slice, FileWriter& writer, BlockChecksums& checksums) {
    const std::int64_t bytes = bytes_of(slice.dtype, slice.count);
    std::vector<std::byte> copied;
    for (std::int64_t done = 0; done < bytes; done += kPieceBytes) {
      const std::size_t size = static_cast<std::size_t>(std::min(kPieceBytes, bytes - done));
      const std::byte* piece = static_cast<const std::byte*>(slice.data) + done;
      if (slice.copy_to) {
        copied.resize(size);
        slice.copy_to(static_cast<std::size_t>(done), copied);
        piece = copied.data();
      }
      checksums.append(piece, size);
      writer.append(piece, size);
    }
  }

  std::vector<TensorSlice> all_;
  std::vector<TensorSlice> written_;  // in the file's order
  std::string header_;
};

/// The folder of the checkpoint, which the first rank creates in one that it locks.
class NewCheckpoint::Folder {
 public:
  Folder(const std::filesystem::path& folder, FolderLock::Duration patience) {
    make_folder(folder);
    lock_.emplace(folder, FolderLock::Kind::Save, patience);
    remove_leftovers(folder);
    draft_.emplace(folder);
    make_folder(draft_->path());
  }

  /// The hidden name of its folder.
  std::string name() const { return draft_->path().filename().string(); }

  /// Returns the name that it gets.
  std::string publish(const CheckpointIndex& index) {
    for (const CheckpointIndex::File& file : index.files) require_there(file);
    const std::string text = encode_index(index);
    if (static_cast<std::int64_t>(text.size()) > kMaxIndexBytes) {
      throw InvalidArgument("its index has " + std::to_string(text.size()) +
                            " bytes, more than can be loaded. Save from fewer ranks.");
    }
    FileWriter file(draft_->path() / kIndexName, static_cast<std::int64_t>(text.size()));
    file.append(text.data(), text.size());
    file.sync();
    return draft_->publish_as_next_checkpoint();
  }

 private:
  /// Checks that a rank's file exists: a rank with another file system has written it elsewhere.
  void require_there(const CheckpointIndex::File& file) const {
    const std::filesystem::path path = draft_->path() / file.name;
    std::error_code error;
    const std::uintmax_t bytes = std::filesystem::file_size(path, error);
    if (!error && bytes == static_cast<std::uintmax_t>(file.bytes)) return;
    throw BackendError(
        "file '" + path.string() +
        "' was written but is missing, so the checkpoint is abandoned. Either another program "
        "removes files there, or the rank that wrote it has another file system under this name.");
  }

  std::optional<FolderLock> lock_;  // outlives the draft
  std::optional<Draft> draft_;
};

struct NewCheckpoint::Parts {
  std::filesystem::path folder;
  int keep_last;
  Ranks ranks;
  std::string what{};
  std::optional<RankFile> file{};
  std::optional<Folder> created{};  // on the first rank
  std::filesystem::path place{};
  CheckpointIndex index{};  // of all files
};

NewCheckpoint::NewCheckpoint(std::filesystem::path folder, const std::vector<TensorSlice>& own,
                             const nlohmann::json& details, int keep_last, const Ranks& ranks,
                             const RequireLoadable& require_loadable)
    : parts_(new Parts{.folder = std::move(folder), .keep_last = keep_last, .ranks = ranks}) {
  Parts& parts = *parts_;
  parts.what = "saving a checkpoint into '" + parts.folder.string() + "'";
  const std::vector<std::string> facts = ranks.run(".begin", parts.what, [&] {
    std::string own_facts = facts_of(parts.folder, keep_last);
    require_storable(details);
    parts.file.emplace(own);
    if (ranks.rank() != 0) return own_facts;
    parts.created.emplace(parts.folder, ranks.timeout() / 2);
    return own_facts + '\0' + parts.created->name();
  });
  parts.place = parts.folder / require_same(facts, ranks);
  parts.index = whole_index(ranks.run(".index", parts.what, [&] {
    CheckpointIndex index = parts.file->index(rank_file_name(ranks.rank()));
    index.details = details;
    return encode_index(index);
  }));
  if (!require_loadable) return;
  ranks.run(".check", parts.what, [&] { require_loadable(parts.index, parts.place); });
}

NewCheckpoint::~NewCheckpoint() = default;
NewCheckpoint::NewCheckpoint(NewCheckpoint&&) noexcept = default;
NewCheckpoint& NewCheckpoint::operator=(NewCheckpoint&&) noexcept = default;

std::filesystem::path NewCheckpoint::write() {
  const auto parts = std::move(parts_);  // the folder's lock is released whatever happens
  const Ranks& ranks = parts->ranks;
  const std::string& what = parts->what;
  const std::filesystem::path& folder = parts->folder;
  const int keep_last = parts->keep_last;
  std::optional<Folder>& created = parts->created;
  CheckpointIndex& index = parts->index;
  const std::vector<std::string> checksums = ranks.run(".shards", what, [&] {
    const std::string name = rank_file_name(ranks.rank());
    const auto file = std::ranges::find(index.files, name, &CheckpointIndex::File::name);
    return nlohmann::json(parts->file->write(parts->place / name, file->bytes)).dump();
  });
  for (std::size_t i = 0; i < checksums.size(); ++i) {
    nlohmann::json::parse(checksums[i]).get_to(index.files[i].block_checksums);
  }
  const std::vector<std::string> names = ranks.run(".publish", what, [&] {
    if (!created) return std::string();
    std::string name = created->publish(index);
    if (keep_last > 0) retire_checkpoints(folder, keep_last);
    return name;
  });
  if (keep_last == 0) return folder / names[0];
  // Freeing a large file takes time, so every rank removes one, and then the first rank all others.
  ranks.run(".remove", what, [&] { remove_retired(folder, rank_file_name(ranks.rank())); });
  ranks.run(".clean", what, [&] {
    if (created) remove_leftovers(folder);
    created.reset();  // releases the folder's lock before any rank returns
  });
  return folder / names[0];
}

}  // namespace kolo::checkpoints

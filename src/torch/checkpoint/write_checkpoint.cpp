#include "torch/checkpoint/write_checkpoint.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "kolo/error.hpp"
#include "kolo/process_set.hpp"
#include "kolo/runtime.hpp"
#include "runtime/api/collectives.hpp"
#include "torch/checkpoint/checkpoint_folder.hpp"
#include "torch/checkpoint/checkpoint_index.hpp"
#include "torch/checkpoint/file_writer.hpp"
#include "torch/checkpoint/folder_lock.hpp"
#include "torch/checkpoint/folders.hpp"
#include "torch/checkpoint/on_all_ranks.hpp"
#include "torch/checkpoint/shard_file.hpp"

namespace kolo::train {
namespace {

/// The folder of a checkpoint that is being written; the destructor removes it unless it is
/// published.
class Attempt {
 public:
  Attempt(std::filesystem::path folder, FolderLock::Duration patience)
      : folder_(std::move(folder)), patience_(patience) {}
  Attempt(const Attempt&) = delete;  // removes its folder once
  Attempt& operator=(const Attempt&) = delete;
  ~Attempt() {
    std::error_code ignored;  // the next attempt removes it
    if (!name_.empty()) std::filesystem::remove_all(folder_ / name_, ignored);
  }

  std::string begin() {
    make_folder(folder_);
    lock_.emplace(folder_, FolderLock::Kind::Save, patience_);
    name_ = begin_checkpoint(folder_);
    return name_.string();
  }
  void publish(const CheckpointIndex& index) {
    for (const CheckpointIndex::File& file : index.files) require_there(file);
    const std::string text = encode_index(index);
    if (static_cast<std::int64_t>(text.size()) > kMaxIndexBytes) {
      throw InvalidArgument("its index has " + std::to_string(text.size()) +
                            " bytes, more than can be loaded. Save from fewer ranks.");
    }
    FileWriter file(folder_ / name_ / kIndexName, static_cast<std::int64_t>(text.size()));
    file.append(text.data(), text.size());
    file.sync();
    publish_checkpoint(folder_, name_);
    name_.clear();
  }

  /// Releases the folder's lock.
  void end() { lock_.reset(); }

 private:
  /// Checks that a rank's file exists: a rank with another file system has written it elsewhere.
  void require_there(const CheckpointIndex::File& file) const {
    const std::filesystem::path path = folder_ / name_ / file.name;
    std::error_code error;
    const std::uintmax_t bytes = std::filesystem::file_size(path, error);
    if (!error && bytes == static_cast<std::uintmax_t>(file.bytes)) return;
    throw BackendError(
        "file '" + path.string() +
        "' was written but is missing, so the checkpoint is abandoned. Either another program "
        "removes files there, or the rank that wrote it has another file system under this name.");
  }

  std::filesystem::path folder_;
  FolderLock::Duration patience_;
  std::filesystem::path name_;
  std::optional<FolderLock> lock_;
};

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
std::string require_same(const std::vector<std::string>& facts, const ProcessSet& set) {
  for (std::size_t i = 1; i < facts.size(); ++i) {
    if (facts[i] == facts[0].substr(0, facts[0].find('\0'))) continue;
    throw MismatchError("saving a checkpoint: ranks disagree: " + facts[i] + " on rank " +
                        std::to_string(set.ranks()[i]) + ", " +
                        facts[0].substr(0, facts[0].find('\0')) + " on rank " +
                        std::to_string(set.ranks()[0]) + ". Give the same on every rank.");
  }
  return facts[0].substr(facts[0].find('\0') + 1);
}

/// Merges the parts of an index that the ranks have encoded.
CheckpointIndex whole_index(const std::vector<std::string>& parts) {
  std::vector<CheckpointIndex> indexes;
  for (const std::string& part : parts) indexes.push_back(parse_index(part));
  CheckpointIndex index = merge_indexes(std::move(indexes));
  require_whole(index);
  return index;
}

std::string shard_name(int rank) {
  std::string digits = std::to_string(rank);
  if (digits.size() < 4) digits.insert(0, 4 - digits.size(), '0');
  return "rank-" + digits + ".safetensors";
}

/// Freeing a large file takes time, so every rank removes one, and then the first rank all others.
template <class OnAll>
void free_retired(const std::filesystem::path& folder, int rank, Attempt& attempt,
                  const OnAll& on_all) {
  on_all(".remove", [&] { remove_retired(folder, shard_name(rank)); });
  on_all(".clean", [&] {
    if (rank == 0) train::remove_leftovers(folder);
    attempt.end();
  });
}

}  // namespace

void write_checkpoint(const std::filesystem::path& folder, const std::vector<TensorSlice>& own,
                      const nlohmann::json& details, int keep_last, const OperationOptions& options,
                      const RequireLoadable& require_loadable) {
  const ProcessSet& set = runtime::chosen(options.process_set);
  const std::string name = options.name.empty() ? set.next_name("write_checkpoint") : options.name;
  const std::string what = "saving a checkpoint into '" + folder.string() + "'";
  const auto on_all = [&](const std::string& step, const auto& work) {
    OperationOptions named = options;
    named.name = name + step;
    return on_all_ranks(named, what, work);
  };
  const bool is_first = set.rank() == 0;
  Attempt attempt(folder, options.timeout.value_or(set.runtime().config().timeout) / 2);
  std::optional<ShardFile> shard;

  const std::vector<std::string> facts = on_all(".begin", [&] {
    std::string own_facts = facts_of(folder, keep_last);
    require_storable(details);
    shard.emplace(own);
    return is_first ? own_facts + '\0' + attempt.begin() : own_facts;
  });
  const std::filesystem::path place = folder / require_same(facts, set);

  const std::vector<std::string> parts = on_all(".shards", [&] {
    const CheckpointIndex::File file = shard->write(place / shard_name(set.rank()));
    return encode_index({{file}, shard->tensors(), details});
  });
  const CheckpointIndex index = whole_index(parts);
  if (require_loadable) on_all(".check", [&] { require_loadable(index, place); });

  on_all(".publish", [&] {
    if (!is_first) return;
    attempt.publish(index);
    if (keep_last > 0) retire_checkpoints(folder, keep_last);
  });
  if (keep_last > 0) free_retired(folder, set.rank(), attempt, on_all);
}

}  // namespace kolo::train

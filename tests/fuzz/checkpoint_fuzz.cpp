// Damages a whole checkpoint, written by DistributedOptimizer::save, and loads it. An input is a
// list of edits: of the index, whose checksum is then corrected so that its content is read, and of
// bytes of the file with the elements. Beyond "no crash":
//   - a rejected checkpoint throws kolo::Error;
//   - training continues after an accepted checkpoint.

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include "checkpoint/signed_index.hpp"
#include "fuzz/fuzz_target.hpp"
#include "kolo/error.hpp"
#include "kolo/runtime.hpp"
#include "kolo/torch/distributed_optimizer.hpp"

namespace kolo::fuzz {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kMaxEdits = 8;

struct Training {
  Training()
      : adamw(model->parameters(), torch::optim::AdamWOptions(0.01)), optimizer(adamw, *model) {}

  void step() {
    optimizer.zero_grad();
    model->forward(at::ones({2, 3})).sum().backward();
    optimizer.step();
  }

  torch::nn::Linear model{3, 2};
  torch::optim::AdamW adamw;
  DistributedOptimizer optimizer;
};

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_file(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

/// A checkpoint, created once, that can be damaged repeatedly.
class Saved {
 public:
  Saved() {
    Training training;
    training.step();
    training.optimizer.save(folder_);
    for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
      if (entry.path().filename() == "index.json") index_path_ = entry.path();
      if (entry.path().extension() == ".safetensors") shard_path_ = entry.path();
    }
    index_ = json::parse(read_file(index_path_));
    shard_ = read_file(shard_path_);
    require(!index_path_.empty() && !shard_path_.empty(), "a checkpoint has an index and a shard");
  }
  ~Saved() { fs::remove_all(folder_); }
  Saved(const Saved&) = delete;  // it removes its folder
  Saved& operator=(const Saved&) = delete;

  fs::path path() const { return index_path_.parent_path(); }

  void damage(ByteSource& source) {
    json index = index_;
    std::string shard = shard_;
    for (int edit = 0; edit < kMaxEdits && !source.is_empty(); ++edit) {
      if (source.take_below(8) == 0) {
        const std::size_t at = source.take<std::uint16_t>() % shard.size();
        shard[at] = static_cast<char>(shard[at] ^ (1 << source.take_below(8)));
      } else {
        change(place_in(index, source), source);
      }
    }
    write_file(index_path_, test::signed_index(index));
    write_file(shard_path_, shard);
  }

 private:
  /// A random value below the top level, which only identifies the file as an index.
  static json& place_in(json& index, ByteSource& source) {
    constexpr std::array<const char*, 3> kParts{"files", "tensors", "details"};
    json* place = &index[kParts[static_cast<std::size_t>(source.take_below(3))]];
    while (place->is_structured() && !place->empty() && source.take_below(8) != 0) {
      auto next = place->begin();
      std::advance(next, source.take_below(static_cast<int>(place->size())));
      place = &*next;
    }
    return *place;
  }

  static void change(json& place, ByteSource& source) {
    static const std::vector<json> kValues{0,
                                           1,
                                           2,
                                           3,
                                           6,
                                           -1,
                                           5056,
                                           INT64_MAX,
                                           UINT64_MAX,
                                           1.5,
                                           true,
                                           false,
                                           nullptr,
                                           "",
                                           "F64",
                                           "F32",
                                           "U8",
                                           "BOOL",
                                           "weight",
                                           "..",
                                           json::array(),
                                           json::object(),
                                           json::array({1}),
                                           json::array({2, 3}),
                                           json::array({0})};
    switch (source.take_below(4)) {
      case 0:
        if (place.is_number_integer()) {
          place = place.get<std::int64_t>() + source.take<std::int8_t>();
          break;
        }
        [[fallthrough]];
      case 1:
        if (place.is_boolean()) {
          place = !place.get<bool>();
          break;
        }
        [[fallthrough]];
      case 2:
        if (place.is_structured() && !place.empty()) {
          auto victim = place.begin();
          std::advance(victim, source.take_below(static_cast<int>(place.size())));
          place.erase(victim);
          break;
        }
        [[fallthrough]];
      default: place = kValues[source.take<std::uint8_t>() % kValues.size()];
    }
  }

  fs::path folder_ =
      fs::temp_directory_path() / ("kolo-checkpoint-fuzz-" + std::to_string(::getpid()));
  fs::path index_path_;
  fs::path shard_path_;
  json index_;
  std::string shard_;
};

}  // namespace

std::vector<std::string> seeds() {
  std::vector<std::string> all;
  for (char first = 0; first < 24; ++first) {
    std::string edits;
    for (int i = 0; i < 24; ++i) edits += static_cast<char>(first * 31 + i * 7 + 1);
    all.push_back(edits);
  }
  return all;
}

}  // namespace kolo::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kolo;
  static Runtime runtime;
  static fuzz::Saved saved;
  fuzz::ByteSource source(data, size);
  saved.damage(source);
  fuzz::Training training;
  try {
    training.optimizer.load(saved.path());
  } catch (const Error&) {
    fuzz::require(size > 0, "a checkpoint without damage is accepted");
    return 0;
  }
  training.step();
  return 0;
}

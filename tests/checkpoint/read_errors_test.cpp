// Incomplete or damaged checkpoints: errors on all ranks that name the file.
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/checksums.hpp"
#include "checkpoint/model.hpp"
#include "checkpoint/new_checkpoint.hpp"
#include "checkpoint/signed_index.hpp"
#include "checkpoint/temporary_folder.hpp"
#include "kolo/error.hpp"
#include "runtime/runtimes.hpp"

namespace kolo::test::read_errors_test {

using checkpoints::Checkpoint;
using nlohmann::json;
namespace fs = std::filesystem;

/// A checkpoint of two ranks, read by any number of ranks.
class CheckpointReadTest : public testing::TestWithParam<int> {
 protected:
  CheckpointReadTest() {
    run_runtimes(2, [&](Runtime& runtime) {
      const Slices own = own_slices(large_model(), 2, runtime.rank(), 1);
      checkpoints::NewCheckpoint(folder_.path(), own.slices, {{"number", 1}}, 0,
                                 checkpoints::Ranks())
          .write();
    });
  }

  fs::path checkpoint() const { return folder_.path() / "checkpoint-00000001"; }
  fs::path shard(int rank) const {
    return checkpoint() / ("rank-000" + std::to_string(rank) + ".safetensors");
  }
  fs::path index() const { return checkpoint() / "index.json"; }

  void expect_refused(const fs::path& path, const std::vector<std::string>& texts) {
    run_runtimes(GetParam(), [&](Runtime&) {
      const std::string text =
          text_thrown_by<InvalidArgument>([&] { Checkpoint(path, checkpoints::Ranks()); });
      for (const std::string& part : texts) expect_contains(text, part);
    });
  }
  void expect_refused(const std::vector<std::string>& texts) {
    expect_refused(folder_.path(), texts);
  }

  void expect_index_refused(const std::function<void(json&)>& change, const std::string& text) {
    const std::string before = read_file(index());
    json changed = json::parse(before);
    change(changed);
    write_file(index(), signed_index(changed));
    expect_refused({"index.json' is not a valid checkpoint index: ", text});
    write_file(index(), before);
  }

  TemporaryFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(, CheckpointReadTest, testing::Values(1, 2, 3, 4));

TEST_P(CheckpointReadTest, OwnNameAndLinks_Open) {
  const TemporaryFolder elsewhere;
  fs::create_directory_symlink(folder_.path(), elsewhere.path() / "link");
  fs::create_directories(folder_.path() / ".incomplete-5");
  run_runtimes(GetParam(), [&](Runtime&) {
    EXPECT_EQ(Checkpoint(checkpoint(), checkpoints::Ranks()).path(), checkpoint());
    const Checkpoint linked(elsewhere.path() / "link", checkpoints::Ranks());
    EXPECT_EQ(linked.path(), elsewhere.path() / "link" / "checkpoint-00000001");
    EXPECT_EQ(read_slice(linked, {"i64", DType::Int64, {13}}, 2, 9).size(), 72U);
  });
}

TEST_P(CheckpointReadTest, NoCheckpoint_IsRefused) {
  expect_refused(folder_.path() / "other", {"/other'", "on rank 0", "there is no folder"});
  expect_refused(shard(1), {"rank-0001.safetensors'", "it is not a folder"});
  fs::create_directories(folder_.path() / "other" / ".incomplete-1");
  expect_refused(folder_.path() / "other", {"there is no checkpoint in it"});
  fs::remove(index());
  expect_refused({"file '" + index().string() + "' is missing"});
}

TEST_P(CheckpointReadTest, HugeIndex_IsRefused) {
  fs::resize_file(index(), (std::uintmax_t{1} << 30) + 1);  // without blocks on the disk
  expect_refused({index().string(), "it has 1073741825 bytes, more than 1073741824"});
}

TEST_P(CheckpointReadTest, MissingShards_AreRefused) {
  fs::remove(shard(1));
  expect_refused({"file '" + shard(1).string() + "' is missing"});
  fs::create_directory(shard(1));
  expect_refused({"'" + shard(1).string() + "' is not a file"});
}

TEST_P(CheckpointReadTest, ShardsOfAnotherSize_AreRefused) {
  const auto size = fs::file_size(shard(1));
  fs::resize_file(shard(1), size - 1);
  expect_refused({shard(1).string(), std::to_string(size - 1) + " bytes instead of " +
                                         std::to_string(size) + ": it is truncated"});
  fs::resize_file(shard(1), 0);
  expect_refused({shard(1).string(), "it is truncated"});
  fs::resize_file(shard(1), size + 1);
  expect_refused({shard(1).string(), "it is another file"});
}

TEST_P(CheckpointReadTest, ForeignShards_AreRefused) {
  std::string bytes = read_file(shard(0));
  fs::resize_file(shard(0), fs::file_size(shard(0)));
  bytes[100] ^= 1;
  write_file(shard(0), bytes);
  expect_refused({shard(0).string(), "checksum of its header differs"});
}

TEST_P(CheckpointReadTest, DamagedElements_AreRefused) {
  std::string bytes = read_file(shard(1));
  const json tensors = json::parse(read_file(index()))["tensors"];
  const json slice = tensors["large"]["slices"][1];
  const std::size_t header = json::parse(read_file(index()))["files"][1]["header_bytes"];
  // In the last element, so that earlier blocks stay valid.
  const std::size_t place =
      header + slice["offset"].get<std::size_t>() + 4 * slice["count"].get<std::size_t>() - 1;
  bytes[place] ^= 4;
  write_file(shard(1), bytes);
  run_runtimes(GetParam(), [&](Runtime&) {
    const Checkpoint damaged(folder_.path(), checkpoints::Ranks());
    const TestTensor large{"large", DType::Float32, {1237, 701}};
    for (const bool reads : {true, false}) {
      const std::string text = text_thrown_by<InvalidArgument>([&] {
        if (reads) {
          read_slice(damaged, large, 0, large.elements());
        } else {
          damaged.verify("large", DType::Float32, large.elements() - 1, 1);
        }
      });
      expect_contains(text, "tensor 'large' cannot be read: file '" + shard(1).string());
      expect_contains(text, "is damaged between bytes");
    }
    // Other blocks are still readable.
    const Bytes whole = contents(large, 1);
    EXPECT_EQ(read_slice(damaged, large, 0, 7), Bytes(whole.begin(), whole.begin() + 28));
    damaged.verify("large", DType::Float32, 0, slice["begin"].get<std::int64_t>() + 1000);
  });
}

TEST_P(CheckpointReadTest, MissingElements_AreRefused) {
  run_runtimes(GetParam(), [&](Runtime&) {
    const Checkpoint good(folder_.path(), checkpoints::Ranks());
    const auto text_of = [&](const std::string& name, std::int64_t begin, std::int64_t count) {
      return text_thrown_by<InvalidArgument>([&] { good.verify(name, DType::Int8, begin, count); });
    };
    expect_contains(text_of("other", 0, 1), "tensor 'other' is not in it");
    expect_contains(text_of("i8", 10, 6), "tensor 'i8' has 15 elements, but 6 from 10 on");
    expect_contains(text_of("i8", -1, 2), "2 from -1 on");
    expect_contains(text_of("i8", 3, -1), "-1 from 3 on");
    good.verify("i8", DType::Int8, 15, 0);
    good.verify("nothing", DType::Float32, 0, 0);
    // The caller's memory determines how much is read, not a size in the file.
    std::vector<std::byte> room(9);
    const auto text_of_reading = [&](const std::string& name, DType dtype) {
      return text_thrown_by<InvalidArgument>([&] { good.read(name, dtype, 0, room); });
    };
    expect_contains(text_of_reading("i64", DType::UInt8),
                    "tensor 'i64' is int64, but uint8 was asked for");
    expect_contains(text_of_reading("u8", DType::UInt8),
                    "tensor 'u8' has 7 elements, but 9 from 0");
    expect_contains(text_of_reading("weight", DType::Float32), "room for 9 bytes");
    EXPECT_EQ(room, std::vector<std::byte>(9));
  });
}

TEST_P(CheckpointReadTest, OtherIndexes_AreRefused) {
  const std::string before = read_file(index());
  write_file(index(), "");
  expect_refused({"index.json' is not a valid checkpoint index", "parse error"});
  write_file(index(), before.substr(0, before.size() / 2));
  expect_refused({"index.json' is not a valid checkpoint index", "parse error"});
  write_file(index(), R"({"weight_map":{}})");
  expect_refused({"index.json' is not a valid checkpoint index", "format"});
  write_file(index(), "[1, 2]");
  expect_refused({"index.json' is not a valid checkpoint index"});
  std::string changed = before;
  changed.replace(changed.find("\"number\":1"), 10, "\"number\":2");
  write_file(index(), changed);
  expect_refused(
      {"index.json' is not a valid checkpoint index", "it is damaged: its checksum differs"});
}

TEST_P(CheckpointReadTest, IndexesWithOtherFields_AreRefused) {
  expect_index_refused([](json& index) { index["version"] = 2; }, "version 2 of the format");
  expect_index_refused([](json& index) { index["format"] = "safetensors"; }, "format");
  for (const char* key : {"files", "tensors", "details"}) {
    expect_index_refused([&](json& index) { index.erase(key); }, key);
  }
  for (const char* key : {"name", "bytes", "header_bytes", "header_checksum", "block_checksums"}) {
    expect_index_refused([&](json& index) { index["files"][0].erase(key); }, key);
  }
  for (const char* key : {"dtype", "shape", "slices"}) {
    expect_index_refused([&](json& index) { index["tensors"]["i8"].erase(key); }, "tensor 'i8': ");
    expect_index_refused([&](json& index) { index["tensors"]["i8"][key] = 1.5; }, "tensor 'i8': ");
  }
  for (const char* key : {"file", "begin", "count", "offset"}) {
    const auto slice = [](json& index) -> json& { return index["tensors"]["i8"]["slices"][0]; };
    expect_index_refused([&](json& index) { slice(index).erase(key); }, "tensor 'i8': ");
    expect_index_refused([&](json& index) { slice(index)[key] = -1; }, "tensor 'i8': ");
    expect_index_refused([&](json& index) { slice(index)[key] = UINT64_MAX; }, "tensor 'i8': ");
    expect_index_refused([&](json& index) { slice(index)[key] = 3.0; }, "tensor 'i8': ");
  }
}

TEST_P(CheckpointReadTest, SlicesThatAreNotTheTensor_AreRefused) {
  const auto weight = [](json& index) -> json& { return index["tensors"]["weight"]; };
  expect_index_refused([&](json& index) { weight(index)["slices"].erase(0); },
                       "tensor 'weight': elements 0 to 1999 are in no file");
  expect_index_refused([&](json& index) { weight(index)["slices"].erase(1); },
                       "tensor 'weight': elements 2000 to 3998 are in no file");
  expect_index_refused([&](json& index) { weight(index)["slices"][0]["count"] = 2003; },
                       "tensor 'weight': elements 2000 to 2002 are in rank-0000.safetensors and in "
                       "rank-0001.safetensors");
  expect_index_refused([&](json& index) { weight(index)["shape"] = {3998}; },
                       "tensor 'weight': float32 [3998] has no elements 3998 to 3998");
  expect_index_refused([&](json& index) { weight(index)["slices"][1]["offset"] = 10'000'000; },
                       "tensor 'weight': 1999 elements at byte 10000000 are not in file");
  expect_index_refused([&](json& index) { weight(index)["dtype"] = "F8_E4M3"; },
                       "tensor 'weight': its dtype is F8_E4M3");
  expect_index_refused([&](json& index) { index["files"][0]["name"] = "../rank-0000.safetensors"; },
                       "a file is named '../rank-0000.safetensors'");
  for (const char* name : {"", ".hidden", "a/b", "rank 0000", "r\u00e4nk"}) {
    expect_index_refused([&](json& index) { index["files"][0]["name"] = name; },
                         std::string("a file is named '") + name + "'");
  }
  expect_index_refused([&](json& index) { index["files"][0]["block_checksums"].erase(0); },
                       "checksums for");
  expect_index_refused([&](json& index) { index["files"][0]["header_bytes"] = 1 << 30; },
                       "checksums for");
}

/// A damaged name must not move a terminal's cursor or break a line of text.
TEST_P(CheckpointReadTest, UnprintableNames_AreEscaped) {
  const std::string name("rank\x1b[2J\0\n", 10);
  expect_index_refused([&](json& index) { index["files"][0]["name"] = name; },
                       "a file is named 'rank\\x1b[2J\\x00\n'");
  expect_index_refused(
      [](json& index) {
        index["tensors"]["\x07\xc2\x9b"] = index["tensors"]["i8"];
        index["tensors"]["\x07\xc2\x9b"]["shape"] = 1;
      },
      "tensor '\\x07\\xc2\\x9b': ");
  std::string text = read_file(index());
  text.replace(text.find("rank-0000"), 9, "rank\xff\xc3(\xed\xa0");
  write_file(index(), text);
  expect_refused({"index.json' is not a valid checkpoint index: ", "rank\\xff"});
}

}  // namespace kolo::test::read_errors_test

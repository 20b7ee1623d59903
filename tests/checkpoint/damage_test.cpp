// Randomly damaged checkpoint files: reading them either fails with an error or returns the
// original data.
#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/model.hpp"
#include "checkpoint/safetensors.hpp"
#include "checkpoint/signed_index.hpp"
#include "checkpoint/temporary_folder.hpp"
#include "checkpoint/write_checkpoint.hpp"
#include "kolo/error.hpp"
#include "runtime/runtimes.hpp"

namespace kolo::test::damage_test {

using checkpoints::Checkpoint;
namespace fs = std::filesystem;

class DamageTest : public testing::Test {
 protected:
  DamageTest() {
    run_runtimes(2, [&](Runtime& runtime) {
      const Slices own = own_slices(model_, 2, runtime.rank(), 1);
      checkpoints::write_checkpoint(folder_.path(), own.slices, {{"number", 1}}, 0,
                                    checkpoints::Ranks());
    });
  }

  std::size_t below(std::size_t end) {
    return std::uniform_int_distribution<std::size_t>(0, end - 1)(random_);
  }

  std::string damaged(std::string bytes) {
    const std::size_t kind = below(6);
    const std::size_t place = below(bytes.size());
    if (kind == 0) bytes.resize(place);
    if (kind == 1) bytes.insert(place, 1 + below(9), static_cast<char>(below(256)));
    if (kind == 2) bytes.erase(place, 1 + below(9));
    if (kind == 3) std::swap(bytes[place], bytes[below(bytes.size())]);
    if (kind >= 4) bytes[place] = static_cast<char>(bytes[place] ^ (1 << below(8)));
    return bytes;
  }

  /// Damages a file `times` times, and counts how often reading it fails.
  int errors_in(const std::string& name, int times,
                const std::function<std::string(std::string)>& damage,
                const std::function<void()>& read) {
    const fs::path path = folder_.path() / "checkpoint-00000001" / name;
    const std::string before = read_file(path);
    int errors = 0;
    for (int i = 0; i < times; ++i) {
      const std::string after = damage(before);
      write_file(path, after);
      try {
        read();
      } catch (const InvalidArgument&) {
        ++errors;
      }
    }
    write_file(path, before);
    return errors;
  }

  /// Reads all tensors that the index lists.
  std::map<std::string, Bytes> read_checkpoint() {
    const Checkpoint checkpoint(folder_.path(), checkpoints::Ranks());
    std::map<std::string, Bytes> values;
    for (const auto& [name, tensor] : checkpoint.tensors()) {
      const TestTensor found{name, tensor.dtype, tensor.shape};
      values[name] = read_slice(checkpoint, found, 0, found.elements());
    }
    return values;
  }

  void expect_saved_values() {
    std::map<std::string, Bytes> saved;
    for (const TestTensor& tensor : model_) saved[tensor.name] = contents(tensor, 1);
    EXPECT_TRUE(read_checkpoint() == saved);
  }

  const std::vector<TestTensor> model_ = small_model();
  TemporaryFolder folder_;
  std::mt19937 random_{2026};
};

TEST_F(DamageTest, Shards_AreRefused) {
  run_runtimes(1, [&](Runtime&) {
    const int errors = errors_in(
        "rank-0001.safetensors", 1000, [&](std::string bytes) { return damaged(std::move(bytes)); },
        [&] { expect_saved_values(); });
    // Some damage has no effect, such as swapping two equal bytes.
    EXPECT_GT(errors, 900);
  });
}

TEST_F(DamageTest, Index_IsRefused) {
  run_runtimes(1, [&](Runtime&) {
    const int errors = errors_in(
        "index.json", 2000, [&](std::string text) { return damaged(std::move(text)); },
        [&] { expect_saved_values(); });
    EXPECT_GT(errors, 1800);
  });
}

/// As if another program had written nonsense with a valid checksum.
TEST_F(DamageTest, IndexWithTheRightChecksum_IsRefusedOrHarmless) {
  run_runtimes(1, [&](Runtime&) {
    const int errors = errors_in(
        "index.json", 4000,
        [&](const std::string& text) {
          const std::string rest = damaged(text.substr(text.find('\n') + 1));
          return signed_text("\n" + rest, "kolo checkpoint", 1);
        },
        [&] { read_checkpoint(); });
    EXPECT_GT(errors, 2000);
    EXPECT_LT(errors, 4000);  // a changed name may be valid
  });
}

TEST_F(DamageTest, SafetensorsFiles_AreRefusedOrHarmless) {
  const fs::path path = folder_.path() / "checkpoint-00000001" / "rank-0001.safetensors";
  const std::size_t header = 1000;
  const int errors = errors_in(
      "rank-0001.safetensors", 4000,
      [&](std::string bytes) { return damaged(bytes.substr(0, header)) + bytes.substr(header); },
      [&] {
        const checkpoints::SafetensorsReader reader(path);
        for (const auto& [name, place] : reader.tensors()) {
          if (!place.dtype) continue;
          const TestTensor found{name, *place.dtype, place.shape};
          Bytes bytes(static_cast<std::size_t>(found.size()));
          reader.read(name, found.dtype, 0, std::as_writable_bytes(std::span(bytes)));
        }
      });
  EXPECT_GT(errors, 2000);
  EXPECT_LT(errors, 4000);
}

}  // namespace kolo::test::damage_test

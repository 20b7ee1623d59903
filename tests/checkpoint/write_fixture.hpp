// Saves of a small model by all ranks, and the resulting folder content.
#pragma once

#include <filesystem>
#include <functional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/folder_lock.hpp"
#include "checkpoint/model.hpp"
#include "checkpoint/new_checkpoint.hpp"
#include "checkpoint/temporary_folder.hpp"
#include "runtime/runtimes.hpp"

namespace kolo::test {

/// Without the lock, which stays.
inline std::set<std::string> names_in(const std::filesystem::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.insert(entry.path().filename().string());
  }
  names.erase(checkpoints::kLockName);
  return names;
}

/// The arguments of one rank's save, for tests to make invalid.
struct Save {
  std::filesystem::path folder;
  Slices own;
  nlohmann::json details = nlohmann::json::object();
  int keep_last = 0;

  void run() const {
    checkpoints::NewCheckpoint(folder, own.slices, details, keep_last, checkpoints::Ranks())
        .write();
  }
  checkpoints::TensorSlice& slice(const std::string& name) {
    for (checkpoints::TensorSlice& slice : own.slices) {
      if (slice.name == name) return slice;
    }
    throw std::runtime_error("no tensor " + name);
  }
};

class WriteFixture : public testing::TestWithParam<int> {
 protected:
  std::string rank_text(const Runtime& runtime) const {
    return "on rank " + std::to_string(runtime.size() - 1) + ": ";
  }

  void save_good(Runtime& runtime, unsigned salt, int keep_last = 0) {
    Save{folder_.path(), own_slices(model_, runtime.size(), runtime.rank(), salt),
         nlohmann::json::object(), keep_last}
        .run();
  }

  void expect_newest(unsigned salt) {
    const checkpoints::Checkpoint checkpoint(folder_.path(), checkpoints::Ranks());
    for (const TestTensor& tensor : model_) {
      EXPECT_EQ(read_slice(checkpoint, tensor, 0, tensor.elements()), contents(tensor, salt))
          << tensor.name;
    }
  }

  /// Makes a save invalid on some ranks. Expects `Expected` with these texts on all ranks, that
  /// only the previous checkpoint is left, and that another save succeeds.
  template <class Expected>
  void expect_refused(const std::function<void(Save&, const Runtime&)>& spoil,
                      const std::function<std::vector<std::string>(const Runtime&)>& texts) {
    std::filesystem::remove_all(folder_.path());
    run_runtimes(GetParam(), [&](Runtime& runtime) {
      save_good(runtime, 1);
      Save save{folder_.path(), own_slices(model_, runtime.size(), runtime.rank(), 2),
                nlohmann::json::object(), 0};
      spoil(save, runtime);
      const std::string text = text_thrown_by<Expected>([&] { save.run(); });
      for (const std::string& part : texts(runtime)) expect_contains(text, part);
      barrier();
      EXPECT_EQ(names_in(folder_.path()), std::set<std::string>{"checkpoint-00000001"});
      expect_newest(1);
      save_good(runtime, 3);
      expect_newest(3);
    });
  }

  /// Makes the save invalid on the last rank, whose number must be in the text.
  template <class Expected>
  void expect_refused_on_last(const std::function<void(Save&)>& spoil,
                              const std::string& expected) {
    expect_refused<Expected>(
        [&](Save& save, const Runtime& runtime) {
          if (runtime.rank() == runtime.size() - 1) spoil(save);
        },
        [&](const Runtime& runtime) {
          return std::vector<std::string>{rank_text(runtime), expected};
        });
  }

  const std::vector<TestTensor> model_ = small_model();
  TemporaryFolder folder_;
};

}  // namespace kolo::test

// What makes saving a checkpoint fail, on any rank, is an error on all that leaves the one before.
#include <csignal>
#include <filesystem>
#include <limits>
#include <set>
#include <string>
#include <sys/resource.h>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/error.hpp"
#include "runtime/runtimes.hpp"
#include "torch/checkpoint/checkpoint.hpp"
#include "torch/checkpoint/folder_lock.hpp"
#include "torch/checkpoint/model.hpp"
#include "torch/checkpoint/temporary_folder.hpp"
#include "torch/checkpoint/write_checkpoint.hpp"

namespace kolo::test::write_errors_test {

using nlohmann::json;
using tensors::Checkpoint;
using tensors::TensorSlice;
using tensors::write_checkpoint;

/// But for the lock, which stays.
std::set<std::string> names_in(const std::filesystem::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.insert(entry.path().filename().string());
  }
  names.erase(tensors::kLockName);
  return names;
}

/// What a rank gives to a save; tests spoil it.
struct Save {
  std::filesystem::path folder;
  Slices own;
  json details = json::object();
  int keep_last = 0;

  void run() const { write_checkpoint(folder, own.slices, details, keep_last, {}); }
  TensorSlice& slice(const std::string& name) {
    for (TensorSlice& slice : own.slices) {
      if (slice.name == name) return slice;
    }
    throw std::runtime_error("no tensor " + name);
  }
};

class CheckpointWriteTest : public testing::TestWithParam<int> {
 protected:
  std::string rank_text(const Runtime& runtime) const {
    return "on rank " + std::to_string(runtime.size() - 1) + ": ";
  }

  void save_good(Runtime& runtime, unsigned salt, int keep_last = 0) {
    Save{folder_.path(), own_slices(model_, runtime.size(), runtime.rank(), salt), json::object(),
         keep_last}
        .run();
  }

  void expect_newest(unsigned salt) {
    const Checkpoint checkpoint(folder_.path(), {});
    for (const TestTensor& tensor : model_) {
      EXPECT_EQ(read_slice(checkpoint, tensor, 0, tensor.elements()), contents(tensor, salt))
          << tensor.name;
    }
  }

  /// One save, spoilt on some ranks: `Expected` on all with these texts, the checkpoint before it
  /// is still there, nothing else, and another can be saved.
  template <class Expected>
  void expect_refused(const std::function<void(Save&, const Runtime&)>& spoil,
                      const std::function<std::vector<std::string>(const Runtime&)>& texts) {
    std::filesystem::remove_all(folder_.path());
    run_runtimes(GetParam(), [&](Runtime& runtime) {
      save_good(runtime, 1);
      Save save{folder_.path(), own_slices(model_, runtime.size(), runtime.rank(), 2),
                json::object(), 0};
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

  /// Spoils it on the last rank, whose number the text has.
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

INSTANTIATE_TEST_SUITE_P(, CheckpointWriteTest, testing::Values(1, 2, 3, 4));

TEST_P(CheckpointWriteTest, MissingElements_AreRefused) {
  expect_refused<InvalidArgument>(
      [](Save& save, const Runtime& runtime) {
        if (runtime.rank() == runtime.size() - 1) --save.slice("weight").count;
      },
      [](const Runtime&) {
        return std::vector<std::string>{"tensor 'weight'", "elements 3998 to 3998 are in no file"};
      });
}

TEST_P(CheckpointWriteTest, MissingElementsInTheMiddle_AreRefused) {
  if (GetParam() == 1) GTEST_SKIP() << "one slice has no middle";
  expect_refused<InvalidArgument>(
      [](Save& save, const Runtime& runtime) {
        if (runtime.rank() == 0) save.slice("weight").count -= 2;
      },
      [](const Runtime& runtime) {
        const std::int64_t end = scattered_rows(3999, runtime.size(), 0);
        return std::vector<std::string>{"tensor 'weight'", "elements " + std::to_string(end - 2) +
                                                               " to " + std::to_string(end - 1) +
                                                               " are in no file"};
      });
}

TEST_P(CheckpointWriteTest, ElementsOfTwoRanks_AreRefused) {
  if (GetParam() == 1) GTEST_SKIP() << "there is no second rank";
  expect_refused<InvalidArgument>(
      [](Save& save, const Runtime& runtime) {
        if (runtime.rank() == 1) {
          save.slice("weight").begin -= 3;
          save.slice("weight").count += 3;
          save.own.memory[7].resize(save.own.memory[7].size() + 12);
          save.slice("weight").data = save.own.memory[7].data();
        }
      },
      [](const Runtime& runtime) {
        const std::int64_t end = scattered_rows(3999, runtime.size(), 0);
        return std::vector<std::string>{
            "tensor 'weight'", "elements " + std::to_string(end - 3) + " to " +
                                   std::to_string(end - 1) +
                                   " are in rank-0000.safetensors and in rank-0001.safetensors"};
      });
}

TEST_P(CheckpointWriteTest, TensorsThatDiffer_AreRefused) {
  if (GetParam() == 1) GTEST_SKIP() << "one rank has nobody to differ from";
  expect_refused<MismatchError>(
      [](Save& save, const Runtime& runtime) {
        if (runtime.rank() == 1) save.slice("i32").shape = {8};
      },
      [](const Runtime&) {
        return std::vector<std::string>{"tensor 'i32'", "int32 [2, 1, 4]", "int32 [8]",
                                        "rank-0001"};
      });
  expect_refused<MismatchError>(
      [](Save& save, const Runtime& runtime) {
        if (runtime.rank() == 1) save.slice("i32").dtype = DType::Float32;
      },
      [](const Runtime&) {
        return std::vector<std::string>{"tensor 'i32'", "int32 [2, 1, 4]", "float32 [2, 1, 4]"};
      });
}

TEST_P(CheckpointWriteTest, OptionsThatDiffer_AreRefused) {
  if (GetParam() == 1) GTEST_SKIP() << "one rank has nobody to differ from";
  expect_refused<MismatchError>(
      [](Save& save, const Runtime& runtime) { save.keep_last = runtime.rank(); },
      [](const Runtime&) {
        return std::vector<std::string>{"keep_last = 0 on rank 0", "keep_last = 1 on rank 1"};
      });
  expect_refused<MismatchError>(
      [](Save& save, const Runtime& runtime) {
        if (runtime.rank() == 1) save.folder /= "other";
      },
      [](const Runtime&) { return std::vector<std::string>{"/other'", "on rank 1"}; });
}

TEST_P(CheckpointWriteTest, ImpossibleSlicesOfOneRank_AreRefused) {
  const auto spoil = [this](const std::function<void(TensorSlice&)>& change,
                            const std::string& expected) {
    expect_refused_on_last<InvalidArgument>([&](Save& save) { change(save.slice("i8")); },
                                            expected);
  };
  spoil([](TensorSlice& slice) { slice.count = 16; }, "tensor 'i8' has 15 elements, but 16 from ");
  spoil([](TensorSlice& slice) { slice.begin = -1; }, "from -1 on were given");
  spoil([](TensorSlice& slice) { slice.begin = std::numeric_limits<std::int64_t>::max(); },
        "tensor 'i8' has 15 elements");
  spoil([](TensorSlice& slice) { slice.count = -1; }, "but -1 from");
  spoil([](TensorSlice& slice) { slice.data = nullptr; }, "tensor 'i8' has no data");
  spoil([](TensorSlice& slice) { slice.shape = {-3, -5}; }, "tensor 'i8' has an impossible shape");
  spoil([](TensorSlice& slice) { slice.shape = {1L << 62, 1L << 62}; }, "impossible shape");
  spoil([](TensorSlice& slice) { slice.name = "bad \xff name"; }, "UTF-8");
}

TEST_P(CheckpointWriteTest, DuplicateNames_AreRefused) {
  expect_refused_on_last<InvalidArgument>(
      [](Save& save) { save.own.slices.push_back(save.slice("mask")); },
      "two tensors are named 'mask");
}

TEST_P(CheckpointWriteTest, DetailsThatJsonCannotHold_AreRefused) {
  const auto spoil = [this](const json& details, const std::string& expected) {
    expect_refused_on_last<InvalidArgument>([&](Save& save) { save.details = details; }, expected);
  };
  spoil({{"groups", {{{"lr", 0.1}}, {{"lr", std::numeric_limits<double>::infinity()}}}}},
        "/groups/1/lr");
  spoil({{"loss", std::numeric_limits<double>::quiet_NaN()}}, "/loss");
  spoil({{"text", "\xff"}}, "UTF-8");
  spoil({{"bytes", json::binary({1, 2})}}, "/bytes");
  spoil(json::array({1}), "not a JSON object");
}

TEST_P(CheckpointWriteTest, NegativeKeepLast_IsRefused) {
  expect_refused_on_last<InvalidArgument>([](Save& save) { save.keep_last = -1; },
                                          "keep_last is -1");
}

TEST_P(CheckpointWriteTest, ImpossibleFolder_IsRefused) {
  write_file(folder_.path() / "file", "");
  run_runtimes(GetParam(), [&](Runtime& runtime) {
    Save save{folder_.path() / "file" / "below",
              own_slices(model_, runtime.size(), runtime.rank(), 1), json::object(), 0};
    const std::string text = text_thrown_by<BackendError>([&] { save.run(); });
    expect_contains(text, "on rank 0: cannot create folder '" + folder_.path().string() + "/file");
  });
}

/// Files of this process cannot become larger, until it goes. As on a full disk, some ranks can
/// write theirs and others cannot.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;  // restores once
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  ~FileSizeLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

TEST_P(CheckpointWriteTest, NoSpaceForOneRank_FailsOnAll) {
  run_runtimes(GetParam(), [&](Runtime& runtime) { save_good(runtime, 1); });
  const std::vector<TestTensor> model = large_model();
  {
    const FileSizeLimit limit(3 << 20);
    run_runtimes(GetParam(), [&](Runtime& runtime) {
      const Save save{folder_.path(),
                      own_slices(model, runtime.size(), runtime.rank(), 2, Division::LastHasAll),
                      json::object(), 0};
      const std::string text = text_thrown_by<BackendError>([&] { save.run(); });
      const int last = runtime.size() - 1;
      expect_contains(text, rank_text(runtime) + "cannot reserve ");
      expect_contains(text, "rank-000" + std::to_string(last) + ".safetensors': File too large");
      barrier();
    });
  }
  EXPECT_EQ(names_in(folder_.path()), std::set<std::string>{"checkpoint-00000001"});
  run_runtimes(GetParam(), [&](Runtime& runtime) {
    expect_newest(1);
    save_good(runtime, 3);
    expect_newest(3);
  });
}

TEST_P(CheckpointWriteTest, KeepLast_RemovesOlderOnes) {
  run_runtimes(GetParam(), [&](Runtime& runtime) {
    const auto expect_names = [&](const std::set<std::string>& names) {
      barrier();
      EXPECT_EQ(names_in(folder_.path()), names);
      barrier();
    };
    for (unsigned salt = 1; salt <= 4; ++salt) save_good(runtime, salt, 0);
    expect_names({"checkpoint-00000001", "checkpoint-00000002", "checkpoint-00000003",
                  "checkpoint-00000004"});
    save_good(runtime, 5, 3);
    expect_names({"checkpoint-00000003", "checkpoint-00000004", "checkpoint-00000005"});
    expect_newest(5);
    save_good(runtime, 6, 1);
    expect_names({"checkpoint-00000006"});
    expect_newest(6);
    save_good(runtime, 7, 9);
    expect_names({"checkpoint-00000006", "checkpoint-00000007"});
  });
}

TEST_P(CheckpointWriteTest, Leftovers_AreRemovedAndNothingElse) {
  for (const char* name : {".incomplete-77/deep", ".removed-checkpoint-00000001", "my notes",
                           "checkpoint-7", "checkpoint-0000000x", ".hidden"}) {
    std::filesystem::create_directories(folder_.path() / name);
    write_file(folder_.path() / name / "file", "x");
  }
  write_file(folder_.path() / ".incomplete-file", "x");
  run_runtimes(GetParam(), [&](Runtime& runtime) {
    save_good(runtime, 1, 1);
    barrier();
    EXPECT_EQ(names_in(folder_.path()),
              (std::set<std::string>{"my notes", "checkpoint-7", "checkpoint-0000000x", ".hidden",
                                     "checkpoint-00000001"}));
    expect_newest(1);
  });
}

TEST_P(CheckpointWriteTest, Numbers_ContinuePastEightDigits) {
  std::filesystem::create_directories(folder_.path() / "checkpoint-99999999");
  run_runtimes(GetParam(), [&](Runtime& runtime) {
    save_good(runtime, 1);
    barrier();
    EXPECT_TRUE(std::filesystem::exists(folder_.path() / "checkpoint-100000000"));
    expect_newest(1);
  });
}

TEST_P(CheckpointWriteTest, ProcessSetAndUmask_AreRespected) {
  run_runtimes(GetParam(), [&](Runtime& runtime) {
    const int last = runtime.size() - 1;
    ProcessSet& set =
        runtime.add_process_set(last == 0 ? std::vector<int>{0} : std::vector<int>{0, last});
    if (!set.included()) return;
    const OperationOptions options{.name = "mine", .process_set = &set};
    const Slices own = own_slices(model_, set.size(), set.rank(), 4);
    write_checkpoint(folder_.path(), own.slices, {{"a", 1}}, 0, options);
    const Checkpoint checkpoint(folder_.path(), options);
    const Bytes weight = contents(model_[7], 4);
    EXPECT_EQ(read_slice(checkpoint, model_[7], 3, 3000),
              Bytes(weight.begin() + 12, weight.begin() + 12012));
    using std::filesystem::perms;
    const perms given =
        std::filesystem::status(checkpoint.path() / "rank-0000.safetensors").permissions();
    const mode_t mask = ::umask(022);
    ::umask(mask);
    EXPECT_EQ(given, static_cast<perms>(0666 & ~mask));
  });
}

}  // namespace kolo::test::write_errors_test

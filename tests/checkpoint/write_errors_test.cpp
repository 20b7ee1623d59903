// If saving fails on any rank, all ranks get an error and the previous checkpoint remains.
#include <filesystem>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "checkpoint/files.hpp"
#include "checkpoint/write_fixture.hpp"
#include "kolo/error.hpp"
#include "support/system/file_size_limit.hpp"

namespace kolo::test::write_errors_test {

using checkpoints::TensorSlice;
using nlohmann::json;

class CheckpointWriteErrorsTest : public WriteFixture {};
INSTANTIATE_TEST_SUITE_P(, CheckpointWriteErrorsTest, testing::Values(1, 2, 3, 4));

TEST_P(CheckpointWriteErrorsTest, MissingElements_AreRefused) {
  expect_refused<InvalidArgument>(
      [](Save& save, const Runtime& runtime) {
        if (runtime.rank() == runtime.size() - 1) --save.slice("weight").count;
      },
      [](const Runtime&) {
        return std::vector<std::string>{"tensor 'weight'", "elements 3998 to 3998 are in no file"};
      });
}

TEST_P(CheckpointWriteErrorsTest, MissingElementsInTheMiddle_AreRefused) {
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

TEST_P(CheckpointWriteErrorsTest, ElementsOfTwoRanks_AreRefused) {
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

TEST_P(CheckpointWriteErrorsTest, TensorsThatDiffer_AreRefused) {
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

TEST_P(CheckpointWriteErrorsTest, OptionsThatDiffer_AreRefused) {
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

TEST_P(CheckpointWriteErrorsTest, ImpossibleSlicesOfOneRank_AreRefused) {
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

TEST_P(CheckpointWriteErrorsTest, DuplicateNames_AreRefused) {
  expect_refused_on_last<InvalidArgument>(
      [](Save& save) { save.own.slices.push_back(save.slice("mask")); },
      "two tensors are named 'mask");
}

TEST_P(CheckpointWriteErrorsTest, DetailsThatJsonCannotHold_AreRefused) {
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

TEST_P(CheckpointWriteErrorsTest, NegativeKeepLast_IsRefused) {
  expect_refused_on_last<InvalidArgument>([](Save& save) { save.keep_last = -1; },
                                          "keep_last is -1");
}

TEST_P(CheckpointWriteErrorsTest, ImpossibleFolder_IsRefused) {
  write_file(folder_.path() / "file", "");
  run_runtimes(GetParam(), [&](Runtime& runtime) {
    Save save{folder_.path() / "file" / "below",
              own_slices(model_, runtime.size(), runtime.rank(), 1), json::object(), 0};
    const std::string text = text_thrown_by<BackendError>([&] { save.run(); });
    expect_contains(text, "on rank 0: cannot create folder '" + folder_.path().string() + "/file");
  });
}

// As on a full disk, some ranks can write their files and others cannot.
TEST_P(CheckpointWriteErrorsTest, NoSpaceForOneRank_FailsOnAll) {
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

// Where the file system cannot reserve blocks, writing meets the limit.
TEST(FileWriterTest, WritingBeyondTheLimitOfFiles_IsAnError) {
  const TemporaryFolder folder;
  checkpoints::FileWriter file(folder.path() / "x", 0);
  const std::vector<char> bytes(1 << 20);
  const FileSizeLimit limit(1 << 19);
  const std::string text =
      text_thrown_by<BackendError>([&] { file.append(bytes.data(), bytes.size()); });
  expect_contains(text, "x': File too large");
}

}  // namespace kolo::test::write_errors_test

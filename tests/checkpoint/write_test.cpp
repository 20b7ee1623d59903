// The folder after a save: which older checkpoints remain, under which names, with which
// permissions.
#include <filesystem>
#include <set>
#include <string>
#include <sys/stat.h>
#include <vector>

#include <gtest/gtest.h>

#include "checkpoint/write_fixture.hpp"

namespace kolo::test::write_test {

using checkpoints::Checkpoint;
using checkpoints::NewCheckpoint;

class CheckpointWriteTest : public WriteFixture {};
INSTANTIATE_TEST_SUITE_P(, CheckpointWriteTest, testing::Values(1, 2, 3, 4));

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
    const checkpoints::Ranks ranks({.name = "mine", .process_set = &set});
    const Slices own = own_slices(model_, set.size(), set.rank(), 4);
    NewCheckpoint(folder_.path(), own.slices, {{"a", 1}}, 0, ranks).write();
    const Checkpoint checkpoint(folder_.path(), ranks);
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

}  // namespace kolo::test::write_test

// Several programs that save into one folder: whatever has the name of a checkpoint stays whole,
// and the second program waits for the first.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <latch>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/error.hpp"
#include "runtime/runtimes.hpp"
#include "torch/checkpoint/checkpoint.hpp"
#include "torch/checkpoint/checkpoint_folder.hpp"
#include "torch/checkpoint/folder_lock.hpp"
#include "torch/checkpoint/folders.hpp"
#include "torch/checkpoint/model.hpp"
#include "torch/checkpoint/temporary_folder.hpp"
#include "torch/checkpoint/write_checkpoint.hpp"

namespace kolo::test::shared_folder_test {

using train::FolderLock;
namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::seconds;

class SharedFolderTest : public testing::Test {
 protected:
  void save(unsigned salt, int keep_last = 1, const OperationOptions& options = {}) {
    const Runtime& runtime = Runtime::current();
    const Slices own = own_slices(model_, runtime.size(), runtime.rank(), salt);
    train::write_checkpoint(folder_.path(), own.slices, {{"salt", salt}}, keep_last, options);
  }
  /// Reads the whole newest checkpoint, and returns its salt.
  unsigned newest() {
    unsigned salt = 0;
    run_runtimes(1, [&](Runtime&) {
      const train::Checkpoint checkpoint(folder_.path(), train::Readers(OperationOptions{}));
      salt = checkpoint.details().at("salt").get<unsigned>();
      for (const TestTensor& tensor : model_) {
        EXPECT_EQ(read_slice(checkpoint, tensor, 0, tensor.elements()), contents(tensor, salt));
      }
    });
    return salt;
  }
  fs::path checkpoint(int number) const { return folder_.path() / train::checkpoint_name(number); }

  const std::vector<TestTensor> model_ = small_model();
  TemporaryFolder folder_;
};

// The interleaved steps of two programs, as on a file system without locks.

TEST_F(SharedFolderTest, RemovedCheckpoint_IsNotPublished) {
  run_runtimes(1, [&](Runtime&) { save(1); });
  const fs::path first = train::begin_checkpoint(folder_.path());
  write_file(folder_.path() / first / "rank-0000.safetensors", "first");
  const fs::path second = train::begin_checkpoint(folder_.path());
  write_file(folder_.path() / second / "rank-0000.safetensors", "second");
  EXPECT_FALSE(fs::exists(folder_.path() / first));
  const std::string text =
      text_thrown_by<BackendError>([&] { train::publish_checkpoint(folder_.path(), first); });
  expect_contains(text, first.string());
  EXPECT_EQ(newest(), 1U);
  train::publish_checkpoint(folder_.path(), second);
  EXPECT_EQ(read_file(checkpoint(2) / "rank-0000.safetensors"), "second");
}

TEST_F(SharedFolderTest, MissingShards_PreventPublishing) {
  for (const bool is_cut : {false, true}) {
    run_runtimes(2, [&](Runtime& runtime) {
      save(1);
      Slices own = own_slices(model_, 2, runtime.rank(), 2);
      if (runtime.rank() == 0) {
        // While this slice is written, its file is replaced or removed.
        own.slices[7].copy_to = [&, data = own.slices[7].data](std::size_t offset,
                                                               std::span<std::byte> place) {
          for (const auto& entry : fs::directory_iterator(folder_.path())) {
            if (!entry.path().filename().string().starts_with(".incomplete-")) continue;
            const fs::path file = entry.path() / "rank-0000.safetensors";
            if (is_cut) {
              fs::rename(file, entry.path() / "moved");
              write_file(file, "shorter");
            } else {
              fs::remove(file);
            }
          }
          std::memcpy(place.data(), static_cast<const std::byte*>(data) + offset, place.size());
        };
      }
      const std::string text = text_thrown_by<BackendError>(
          [&] { train::write_checkpoint(folder_.path(), own.slices, {{"salt", 2}}, 1, {}); });
      expect_contains(text, "rank-0000.safetensors' was written but is missing");
      barrier();
    });
    EXPECT_EQ(newest(), 1U);
  }
}

TEST_F(SharedFolderTest, PublishedNumber_IsNotTakenTwiceAndTheNewestIsNotRetired) {
  run_runtimes(1, [&](Runtime&) { save(1); });
  std::vector<fs::path> names;
  for (int i = 0; i < 8; ++i) names.push_back(".incomplete-mine-" + std::to_string(i));
  for (const fs::path& name : names) {
    fs::create_directory(folder_.path() / name);
    write_file(folder_.path() / name / "file", name.string());
  }
  std::latch begin(static_cast<std::ptrdiff_t>(names.size()));
  std::vector<std::thread> programs;
  for (const fs::path& name : names) {
    programs.emplace_back([&, name] {
      begin.arrive_and_wait();
      train::publish_checkpoint(folder_.path(), name);
    });
  }
  for (std::thread& program : programs) program.join();
  std::set<std::string> published;
  for (int number = 2; number <= 9; ++number) {
    published.insert(read_file(checkpoint(number) / "file"));
  }
  EXPECT_EQ(published.size(), names.size());
  train::retire_checkpoints(folder_.path(), 1);
  train::retire_checkpoints(folder_.path(), 1);
  EXPECT_EQ(train::list_checkpoints(folder_.path()), std::vector<std::int64_t>{9});
}

// The lock.

TEST_F(SharedFolderTest, SecondProgram_FailsWithAdviceIfTheFirstDoesNotEnd) {
  run_runtimes(2, [&](Runtime& runtime) {
    save(1);
    const OperationOptions brief{.timeout = milliseconds(400)};
    {
      std::optional<FolderLock> other;
      if (runtime.rank() == 0) other.emplace(folder_.path(), FolderLock::Kind::Save, seconds(0));
      barrier();
      for (const auto& attempt :
           {std::function([&] { save(2, 1, brief); }),
            std::function([&] { train::Checkpoint(folder_.path(), train::Readers(brief)); }),
            std::function([&] { train::Checkpoint(checkpoint(1), train::Readers(brief)); })}) {
        const std::string text = text_thrown_by<BackendError>(attempt);
        expect_contains(text, "on rank 0: another program saves checkpoints into");
        expect_contains(text, folder_.path().string());
        expect_contains(text, "process " + std::to_string(::getpid()) + " on ");
        expect_contains(text, "a folder of its own");
      }
      barrier();
    }
    barrier();
    EXPECT_FALSE(fs::exists(checkpoint(2)));
    save(2);
  });
  EXPECT_EQ(newest(), 2U);
}

TEST_F(SharedFolderTest, Loading_IsConcurrentAndDelaysRemoval) {
  run_runtimes(1, [&](Runtime&) {
    save(1);
    const train::Checkpoint first(folder_.path(), train::Readers(OperationOptions{}));
    const train::Checkpoint second(checkpoint(1), train::Readers(OperationOptions{}));
    expect_contains(
        text_thrown_by<BackendError>([&] { save(2, 1, {.timeout = milliseconds(100)}); }),
        "another program saves checkpoints into, or loads one from");
    for (const TestTensor& tensor : model_) {
      EXPECT_EQ(read_slice(second, tensor, 0, tensor.elements()), contents(tensor, 1));
    }
  });
  run_runtimes(1, [&](Runtime&) { save(2); });
  EXPECT_EQ(newest(), 2U);
}

TEST_F(SharedFolderTest, ManySavesOfTwoPrograms_FollowEachOther) {
  std::atomic<unsigned> saves{0};
  run_runtimes(1, [&](Runtime&) { save(1000); });
  std::vector<std::thread> programs;
  for (const unsigned program : {1U, 2U}) {
    programs.emplace_back([&, program] {
      run_runtimes(2, [&](Runtime& runtime) {
        for (unsigned i = 0; i < 12; ++i) {
          save(program * 100 + i);
          if (runtime.rank() == 0) ++saves;
        }
      });
    });
  }
  while (saves < 24) newest();
  for (std::thread& program : programs) program.join();
  EXPECT_TRUE(newest() == 111 || newest() == 211);
  EXPECT_EQ(train::list_checkpoints(folder_.path()), std::vector<std::int64_t>{25});
}

TEST_F(SharedFolderTest, Error_NamesTheHolderAndNotTheLastThatSaved) {
  run_runtimes(1, [&](Runtime&) {
    save(1);
    const train::Checkpoint loading(folder_.path(), train::Readers(OperationOptions{}));
    const std::string text =
        text_thrown_by<BackendError>([&] { save(2, 1, {.timeout = milliseconds(100)}); });
    expect_contains(text, "It is loading from there.");
    EXPECT_EQ(text.find("process "), std::string::npos) << text;
  });
}

// In a folder that others may write to, the lock file may be a trap.

TEST_F(SharedFolderTest, LinksAreNotFollowed_NorForeignFilesEmptied) {
  const TemporaryFolder elsewhere;
  const fs::path victim = elsewhere.path() / "victim";
  const fs::path lock = folder_.path() / train::kLockName;
  write_file(victim, "precious");
  run_runtimes(1, [&](Runtime&) {
    fs::create_symlink(victim, lock);
    expect_contains(text_thrown_by<BackendError>([&] { save(1); }), "is a symbolic link");
    fs::remove(lock);
    fs::create_hard_link(victim, lock);
    expect_contains(text_thrown_by<BackendError>([&] { save(1); }), "is not a lock file");
    fs::remove(lock);
    write_file(lock, "a file of the user's");
    save(1);
    EXPECT_EQ(read_file(lock), "a file of the user's");
  });
  EXPECT_EQ(read_file(victim), "precious");
  EXPECT_EQ(newest(), 1U);
}

TEST_F(SharedFolderTest, LockOfAnotherUser_IsRefusedWhereEverybodyMayWrite) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file to another user";
  const fs::path lock = folder_.path() / train::kLockName;
  write_file(lock, "");
  ASSERT_EQ(::chown(lock.c_str(), 1, 1), 0);
  run_runtimes(1, [&](Runtime&) {
    fs::permissions(folder_.path(), fs::perms::all);
    expect_contains(text_thrown_by<BackendError>([&] { save(1); }), "is not a lock file");
    fs::permissions(folder_.path(), fs::perms::owner_all | fs::perms::group_all);
    save(1);
  });
  EXPECT_EQ(newest(), 1U);
}

TEST_F(SharedFolderTest, OnlyThoseWhoMayWriteToTheFolder_CanLockIt) {
  using fs::perms;
  constexpr perms kOwner = perms::owner_read | perms::owner_write;
  constexpr perms kGroup = perms::group_read | perms::group_write;
  const fs::path lock = folder_.path() / train::kLockName;
  run_runtimes(1, [&](Runtime&) {
    write_file(lock, "");
    fs::permissions(lock, kOwner | perms::group_read | perms::others_read);  // as once made
    fs::permissions(folder_.path(), perms::owner_all | perms::group_read | perms::others_read);
    save(1);
    EXPECT_EQ(fs::status(lock).permissions(), kOwner);
    fs::permissions(folder_.path(), perms::owner_all | perms::group_all);
    save(2);
    EXPECT_EQ(fs::status(lock).permissions(), kOwner | kGroup);
  });
}

TEST_F(SharedFolderTest, FolderWithoutLockFile_IsLoaded) {
  run_runtimes(1, [&](Runtime&) { save(1); });
  fs::remove(folder_.path() / train::kLockName);
  EXPECT_EQ(newest(), 1U);
  EXPECT_FALSE(fs::exists(folder_.path() / train::kLockName));
}

}  // namespace kolo::test::shared_folder_test

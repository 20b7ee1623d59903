// Several programs that save into one folder: whatever has the name of a checkpoint stays whole,
// and the second program waits for the first.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
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

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/files.hpp"
#include "checkpoint/folder_lock.hpp"
#include "checkpoint/model.hpp"
#include "checkpoint/new_checkpoint.hpp"
#include "checkpoint/publish.hpp"
#include "checkpoint/temporary_folder.hpp"
#include "kolo/error.hpp"
#include "runtime/runtimes.hpp"

namespace kolo::test::shared_folder_test {

using checkpoints::Draft;
using checkpoints::FolderLock;
namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::seconds;

class SharedFolderTest : public testing::Test {
 protected:
  void save(unsigned salt, int keep_last = 1, const OperationOptions& options = {}) {
    const Runtime& runtime = Runtime::current();
    const Slices own = own_slices(model_, runtime.size(), runtime.rank(), salt);
    checkpoints::NewCheckpoint(folder_.path(), own.slices, {{"salt", salt}}, keep_last,
                               checkpoints::Ranks(options))
        .write();
  }
  /// Reads the whole newest checkpoint, and returns its salt.
  unsigned newest() {
    unsigned salt = 0;
    run_runtimes(1, [&](Runtime&) {
      const checkpoints::Checkpoint checkpoint(folder_.path(), checkpoints::Ranks());
      salt = checkpoint.details().at("salt").get<unsigned>();
      for (const TestTensor& tensor : model_) {
        EXPECT_EQ(read_slice(checkpoint, tensor, 0, tensor.elements()), contents(tensor, salt));
      }
    });
    return salt;
  }
  fs::path checkpoint(int number) const {
    return folder_.path() / checkpoints::checkpoint_name(number);
  }

  static void fill(const Draft& draft, const std::string& file, const std::string& text) {
    fs::create_directory(draft.path());
    write_file(draft.path() / file, text);
  }

  const std::vector<TestTensor> model_ = small_model();
  TemporaryFolder folder_;
};

// The interleaved steps of two programs, as on a file system without locks.

TEST_F(SharedFolderTest, RemovedCheckpoint_IsNotPublished) {
  run_runtimes(1, [&](Runtime&) { save(1); });
  Draft first(folder_.path());
  fill(first, "rank-0000.safetensors", "first");
  checkpoints::remove_leftovers(folder_.path());  // as the second program does
  EXPECT_FALSE(fs::exists(first.path()));
  Draft second(folder_.path());
  fill(second, "rank-0000.safetensors", "second");
  expect_contains(text_thrown_by<BackendError>([&] { first.publish("checkpoint-00000002"); }),
                  first.path().string());
  expect_contains(text_thrown_by<BackendError>([&] { first.publish_as_next_checkpoint(); }),
                  first.path().string());
  EXPECT_EQ(newest(), 1U);
  second.publish_as_next_checkpoint();
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
      const std::string text = text_thrown_by<BackendError>([&] {
        checkpoints::NewCheckpoint(folder_.path(), own.slices, {{"salt", 2}}, 1,
                                   checkpoints::Ranks())
            .write();
      });
      expect_contains(text, "rank-0000.safetensors' was written but is missing");
      barrier();
    });
    EXPECT_EQ(newest(), 1U);
  }
}

TEST_F(SharedFolderTest, PublishedNumber_IsNotTakenTwiceAndTheNewestIsNotRetired) {
  run_runtimes(1, [&](Runtime&) { save(1); });
  constexpr int kPrograms = 8;
  std::deque<Draft> drafts;
  for (int i = 0; i < kPrograms; ++i) {
    fill(drafts.emplace_back(folder_.path()), "file", std::to_string(i));
  }
  std::latch begin(kPrograms);
  std::vector<std::thread> programs;
  for (Draft& draft : drafts) {
    programs.emplace_back([&] {
      begin.arrive_and_wait();
      draft.publish_as_next_checkpoint();
    });
  }
  for (std::thread& program : programs) program.join();
  std::set<std::string> published;
  for (int number = 2; number <= 9; ++number) {
    published.insert(read_file(checkpoint(number) / "file"));
  }
  EXPECT_EQ(published.size(), drafts.size());
  checkpoints::retire_checkpoints(folder_.path(), 1);
  checkpoints::retire_checkpoints(folder_.path(), 1);
  EXPECT_EQ(checkpoints::list_checkpoints(folder_.path()), std::vector<std::int64_t>{9});
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
           {std::function([&] { save(2, 1, brief); }), std::function([&] {
              checkpoints::Checkpoint(folder_.path(), checkpoints::Ranks(brief));
            }),
            std::function(
                [&] { checkpoints::Checkpoint(checkpoint(1), checkpoints::Ranks(brief)); })}) {
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
    const checkpoints::Checkpoint first(folder_.path(), checkpoints::Ranks());
    const checkpoints::Checkpoint second(checkpoint(1), checkpoints::Ranks());
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
  EXPECT_EQ(checkpoints::list_checkpoints(folder_.path()), std::vector<std::int64_t>{25});
}

TEST_F(SharedFolderTest, Error_NamesTheHolderAndNotTheLastThatSaved) {
  run_runtimes(1, [&](Runtime&) {
    save(1);
    const checkpoints::Checkpoint loading(folder_.path(), checkpoints::Ranks());
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
  const fs::path lock = folder_.path() / checkpoints::kLockName;
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
  const fs::path lock = folder_.path() / checkpoints::kLockName;
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
  const fs::path lock = folder_.path() / checkpoints::kLockName;
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
  fs::remove(folder_.path() / checkpoints::kLockName);
  EXPECT_EQ(newest(), 1U);
  EXPECT_FALSE(fs::exists(folder_.path() / checkpoints::kLockName));
}

}  // namespace kolo::test::shared_folder_test

#include "comm/rendezvous_world.hpp"

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "checkpoint/temporary_folder.hpp"
#include "comm/file_store.hpp"
#include "comm/ranks_of_a_store.hpp"
#include "contract/communicator_contract.hpp"
#include "contract/transfer_contract.hpp"
#include "contract/window_contract.hpp"
#include "kolo/error.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"
#include "support/errors.hpp"

namespace kolo::test::rendezvous_world_test {

using namespace std::chrono_literals;

INSTANTIATE_TYPED_TEST_SUITE_P(Rendezvous, CommunicatorContract, RanksOfAStore);
INSTANTIATE_TYPED_TEST_SUITE_P(Rendezvous, TransferContract, RanksOfAStore);
INSTANTIATE_TYPED_TEST_SUITE_P(Rendezvous, WindowContract, RanksOfAStore);

// More than a ring holds, in both directions and of two channels at once; what nobody has asked for
// yet is in the way of nothing.
TEST(MessageRingsTest, FullRings_LetAllMessagesThrough) {
  constexpr int kMessages = 300;
  RanksOfAStore::run(2, [](comm::World& world) {
    const auto first = everybody(world, 1);
    const auto other = everybody(world, 2);
    const int rank = first->rank();
    const int peer = 1 - rank;
    std::vector<std::vector<std::byte>> sent;
    std::vector<Transfer> sends;
    for (int i = 0; i < kMessages; ++i) {
      const std::size_t size = i % 5 == 0 ? 100'000 : 4096 - static_cast<std::size_t>(i);
      sent.push_back(message(rank, peer, i, size));
      sends.push_back((i % 2 == 0 ? *first : *other).send(sent.back(), peer, i % 3));
    }
    for (int channel = 1; channel >= 0; --channel) {
      for (int tag = 2; tag >= 0; --tag) {
        for (int i = 0; i < kMessages; ++i) {
          if (i % 2 != channel || i % 3 != tag) continue;
          const std::size_t size = sent[static_cast<std::size_t>(i)].size();
          std::vector<std::byte> received(size);
          Transfer receiving = (channel == 0 ? *first : *other).receive(received, peer, tag);
          finish(receiving);
          ASSERT_TRUE(received == message(peer, rank, i, size)) << "message " << i;
        }
      }
    }
    finish_all(sends);
  });
}

// An abandoned receive of a long message is free at once: its data are dropped as they come.
TEST(MessageRingsTest, AbandonedInTheMiddle_ALongMessageIsDropped) {
  constexpr std::size_t kSize = std::size_t{1} << 20;
  RanksOfAStore::run(2, [](comm::World& world) {
    const auto all = everybody(world);
    const int rank = all->rank();
    if (rank == 0) {
      const auto lost = message(0, 1, 0, kSize);
      const auto kept = message(0, 1, 1, kSize);
      Transfer first = all->send(lost, 1, 3);
      Transfer second = all->send(kept, 1, 3);
      finish(first);
      finish(second);
      return;
    }
    wait_for_message(*all, 3);
    std::vector<std::byte> free(kSize);
    {
      Transfer abandoned = all->receive(free, 0, 3);
      while (free[0] == std::byte{0} && free[1] == std::byte{0}) {
        ASSERT_FALSE(abandoned.ready());
      }
    }
    std::ranges::fill(free, std::byte{7});
    std::vector<std::byte> received(kSize);
    Transfer receiving = all->receive(received, 0, 3);
    finish(receiving);
    EXPECT_TRUE(received == message(0, 1, 1, kSize));
    EXPECT_TRUE(free == std::vector<std::byte>(kSize, std::byte{7}));
  });
}

TEST(MessageRingsTest, ALongMessageOfAnotherSize_IsAnErrorAndWritesNothing) {
  constexpr std::size_t kSize = 100'000;
  RanksOfAStore::run(2, [](comm::World& world) {
    const auto all = everybody(world);
    const auto sent = message(0, 1, 0, kSize);
    if (all->rank() == 0) {
      std::vector<Transfer> sends;
      for (int i = 0; i < 3; ++i) sends.push_back(all->send(sent, 1, 3));
      finish_all(sends);
      return;
    }
    for (const std::size_t expected : {kSize / 2, 2 * kSize}) {
      std::vector<std::byte> memory(2 * kSize, std::byte{7});
      Transfer receiving = all->receive(std::span(memory).first(expected), 0, 3);
      EXPECT_THROW(finish(receiving), BackendError);
      EXPECT_TRUE(memory == std::vector<std::byte>(2 * kSize, std::byte{7}));
    }
    std::vector<std::byte> received(kSize);
    Transfer receiving = all->receive(received, 0, 3);
    finish(receiving);
    EXPECT_TRUE(received == sent);
  });
}

TEST(RendezvousWorldTest, RanksOfAHost_ShareANode) {
  RanksOfAStore::run(3, [](comm::World& world) {
    const comm::Topology& topology = world.topology();
    EXPECT_EQ(topology.size, 3);
    EXPECT_EQ(topology.node_of_rank, (std::vector<int>{0, 0, 0}));
    EXPECT_EQ(topology.local_rank, topology.rank);
    EXPECT_FALSE(topology.host_of_rank.front().empty());
    EXPECT_TRUE(world.dead_peers().empty());
  });
}

TEST(RendezvousWorldTest, WhoDoesNotCome_IsNamedOnAllOthers) {
  const auto store = std::make_shared<MemoryStore>();
  Config config;
  config.start_timeout = 300ms;
  std::atomic<int> refused{0};
  run_threads(4, [&](int rank) {
    if (rank == 1 || rank == 3) return;
    const std::string text = text_thrown_by<TimeoutError>(
        [&] { comm::RendezvousWorld(config, {.store = store, .rank = rank, .size = 4}); });
    expect_contains(text, "of 4 ranks, ranks 1 and 3 have not constructed a kolo::Runtime within");
    ++refused;
  });
  EXPECT_EQ(refused, 2);
}

TEST(RendezvousWorldTest, RanksThatCannotBe_AreRefused) {
  const auto store = std::make_shared<MemoryStore>();
  for (const auto& [rank, size] : {std::pair{2, 2}, {-1, 3}, {0, 0}}) {
    const std::string text = text_thrown_by<InvalidArgument>([&, rank = rank, size = size] {
      comm::RendezvousWorld(Config{}, {.store = store, .rank = rank, .size = size});
    });
    expect_contains(text, "has no rank " + std::to_string(rank));
  }
}

// --- a store with what an earlier attempt has set ---

/// The sum of the ranks that have met, by messages along a ring.
int sum_of_ranks(comm::World& world) {
  const auto all = everybody(world);
  const int size = all->size();
  int sum = all->rank();
  int passed = all->rank();
  for (int i = 1; i < size; ++i) {
    int received = 0;
    Transfer receiving = all->receive(std::as_writable_bytes(std::span(&received, 1)),
                                      (all->rank() + size - 1) % size, 0);
    Transfer sending = all->send(std::as_bytes(std::span(&passed, 1)), (all->rank() + 1) % size, 0);
    finish(receiving);
    finish(sending);
    sum += passed = received;
  }
  return sum;
}

// Attempts on other numbers of ranks, one after another, whose ranks come in different orders, the
// later ones while others have already read what the last attempt has set.
TEST(RendezvousWorldTest, AttemptsWithOneStore_DoNotMix) {
  const auto store = std::make_shared<MemoryStore>();
  for (int attempt = 0; attempt < 12; ++attempt) {
    const int size = 2 + attempt % 3;
    run_threads(size, [&](int rank) {
      std::this_thread::sleep_for((rank + attempt) % size * 60ms);
      comm::RendezvousWorld world(Config{}, {.store = store, .rank = rank, .size = size});
      EXPECT_EQ(sum_of_ranks(world), size * (size - 1) / 2) << "attempt " << attempt;
    });
  }
}

// A rank has begun, and was started again before the others came.
TEST(RendezvousWorldTest, ARankThatBeginsAgain_MeetsTheOthers) {
  for (const int again : {0, 1, 2}) {
    const auto store = std::make_shared<MemoryStore>();
    Config hasty;
    hasty.start_timeout = 50ms;
    EXPECT_THROW(comm::RendezvousWorld(hasty, {.store = store, .rank = again, .size = 3}),
                 TimeoutError);
    run_threads(3, [&](int rank) {
      if (rank == again) std::this_thread::sleep_for(150ms);
      comm::RendezvousWorld world(Config{}, {.store = store, .rank = rank, .size = 3});
      EXPECT_EQ(sum_of_ranks(world), 3);
    });
  }
}

TEST(RendezvousWorldTest, WhoDoesNotComeAgain_IsNamedOnAllOthers) {
  const auto store = std::make_shared<MemoryStore>();
  run_threads(3, [&](int rank) {
    comm::RendezvousWorld(Config{}, {.store = store, .rank = rank, .size = 3});
  });
  Config config;
  config.start_timeout = 2s;
  for (const int missing : {0, 1}) {
    run_threads(3, [&](int rank) {
      if (rank == missing) return;
      const std::string text = text_thrown_by<TimeoutError>(
          [&] { comm::RendezvousWorld(config, {.store = store, .rank = rank, .size = 3}); });
      expect_contains(text, "of 3 ranks, rank " + std::to_string(missing) + " has not");
    });
  }
}

TEST(RendezvousWorldTest, TwoJobsAtOnceWithOneStore_AreRefused) {
  const auto store = std::make_shared<MemoryStore>();
  Config config;
  config.start_timeout = 1s;
  for (const int twice : {0, 1}) {
    std::atomic<int> refused{0};
    std::barrier both(2);
    run_threads(2, [&](int) {
      both.arrive_and_wait();
      try {
        comm::RendezvousWorld(config, {.store = store, .rank = twice, .size = 2});
      } catch (const InvalidArgument& error) {
        expect_contains(error.what(), "has started as rank " + std::to_string(twice));
        ++refused;
      } catch (const TimeoutError&) {  // who came last waits for the other rank
      }
    });
    EXPECT_EQ(refused, 1);
  }
}

// --- runtimes ---

void run_runtimes_of_a_store(int size, const std::shared_ptr<Store>& store,
                             const std::function<void(Runtime&)>& body) {
  run_threads(size, [&](int rank) {
    Runtime runtime({.config = test_config(), .store = store, .rank = rank, .size = size});
    Runtime::set_thread_current(&runtime);
    body(runtime);
    Runtime::set_thread_current(nullptr);
  });
}

TEST(RuntimeOfAStoreTest, OperationsAndMessages_Work) {
  const auto store = std::make_shared<MemoryStore>();
  run_runtimes_of_a_store(3, store, [](Runtime& runtime) {
    expect_sum_works(runtime, "x");
    const std::vector<int> pair{0, 2};
    ProcessSet& set = runtime.add_process_set(pair);
    EXPECT_EQ(set.included(), runtime.rank() != 1);
    expect_sum_works(runtime, "y");
  });
}

TEST(RuntimeOfAStoreTest, WithACommunicator_IsRefused) {
  const std::string text = text_thrown_by<InvalidArgument>(
      [] { Runtime({.communicator = 0, .store = std::make_shared<MemoryStore>()}); });
  expect_contains(text, "Give one");
}

// --- a folder as the store ---

TEST(FileStoreTest, Values_AreSeenByOthersAndReplaced) {
  const TemporaryFolder folder;
  comm::FileStore store(folder.path() / "job");
  comm::FileStore other(folder.path() / "job");
  EXPECT_EQ(other.get("a/1", 0ms), std::nullopt);
  const std::string value("x\0y", 3);
  store.set("a/1", value);
  EXPECT_EQ(other.get("a/1", 0ms), value);
  other.set("a/1", "z");
  EXPECT_EQ(store.get("a/1", 0ms), "z");
}

TEST(FileStoreTest, FolderThatCannotBeMade_IsAnError) {
  expect_contains(text_thrown_by<BackendError>([] { comm::FileStore("/proc/no/folder"); }),
                  "cannot make /proc/no/folder");
}

}  // namespace kolo::test::rendezvous_world_test

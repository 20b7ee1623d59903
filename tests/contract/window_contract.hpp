#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "comm/wait.hpp"
#include "contract/messages.hpp"
#include "kolo/shared_window.hpp"
#include "support/sanitizers.hpp"

/// Requirements on every SharedWindow, tested through the World that makes it. Instantiated like
/// the contract of communicators.
namespace kolo::test {

inline std::shared_ptr<SharedWindow> make_window(comm::World& world, Communicator& communicator,
                                                 std::size_t segment_bytes) {
  std::shared_ptr<SharedWindow> window;
  comm::wait(world.make_window(communicator, 0, segment_bytes, window),
             Deadline::after(std::chrono::seconds(30)));
  return window;
}

template <class Awaitable>
void wait_until_ready(Awaitable awaitable) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!awaitable.ready()) {
    if (std::chrono::steady_clock::now() > deadline) throw std::runtime_error("no stage in 30 s");
    std::this_thread::yield();
  }
}

template <class Ranks>
class WindowContract : public CommunicatorContract<Ranks> {};

TYPED_TEST_SUITE_P(WindowContract);

TYPED_TEST_P(WindowContract, SegmentsAreZeroedAlignedAndOfTheRequestedSize) {
  this->on_every_rank([](Communicator& communicator, comm::World& world) {
    for (const std::size_t size : {std::size_t{1}, std::size_t{64}, std::size_t{4096 + 1}}) {
      const auto window = make_window(world, communicator, size);
      EXPECT_EQ(window->rank(), communicator.rank());
      ASSERT_EQ(window->size(), communicator.size());
      for (int rank = 0; rank < window->size(); ++rank) {
        const std::span<std::byte> segment = window->segment(rank);
        EXPECT_EQ(segment.size(), size);
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(segment.data()) % 64, 0u);
        EXPECT_TRUE(segment.front() == std::byte{0} && segment.back() == std::byte{0});
      }
      window->enter_stage();  // no rank unmaps memory that another still reads
      wait_until_ready(window->all_reached(1));
    }
  });
}

// In each round every rank rewrites its whole segment and reads all others.
TYPED_TEST_P(WindowContract, WritesBeforeAStageAreVisibleInIt) {
  static constexpr std::size_t kSize = 5000;
  static constexpr int kRounds = kIsSanitized ? 10 : 50;
  this->on_every_rank([](Communicator& communicator, comm::World& world) {
    const auto window = make_window(world, communicator, kSize);
    for (int round = 0; round < kRounds; ++round) {
      const std::span<std::byte> own = window->segment(window->rank());
      for (std::size_t i = 0; i < kSize; ++i) own[i] = pattern(window->rank(), 0, round, i);
      const std::uint64_t written = window->enter_stage();
      EXPECT_EQ(written, window->stage());
      wait_until_ready(window->all_reached(written));
      for (int rank = 0; rank < window->size(); ++rank) {
        const std::span<std::byte> segment = window->segment(rank);
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < kSize; ++i) wrong += segment[i] != pattern(rank, 0, round, i);
        EXPECT_EQ(wrong, 0u) << "segment of " << rank << " in round " << round;
      }
      wait_until_ready(window->all_reached(window->enter_stage()));
    }
    EXPECT_EQ(window->stage(), 2u * kRounds);
  });
}

TYPED_TEST_P(WindowContract, OneRankCanBeAwaited) {
  this->on_every_rank([](Communicator& communicator, comm::World& world) {
    const auto window = make_window(world, communicator, 64);
    const int last = window->size() - 1;
    EXPECT_TRUE(window->reached(last, 0).ready());
    EXPECT_FALSE(window->reached(window->rank(), 1).ready());
    // A chain from the last rank down: each enters after its neighbour.
    if (window->rank() < last) wait_until_ready(window->reached(window->rank() + 1, 1));
    window->enter_stage();
    wait_until_ready(window->reached(0, 1));
    EXPECT_TRUE(window->all_reached(1).ready()) << "rank 0 enters last";
  });
}

TYPED_TEST_P(WindowContract, WindowsAreIndependent) {
  this->on_every_rank([](Communicator& communicator, comm::World& world) {
    const auto first = make_window(world, communicator, 100);
    const auto second = make_window(world, communicator, 200);
    const int rank = communicator.rank();
    first->segment(rank)[7] = pattern(rank, 0, 1, 7);
    second->segment(rank)[7] = pattern(rank, 0, 2, 7);
    first->enter_stage();
    EXPECT_FALSE(second->reached(rank, 1).ready());
    second->enter_stage();
    wait_until_ready(second->all_reached(1));
    for (int peer = 0; peer < communicator.size(); ++peer) {
      EXPECT_EQ(first->segment(peer)[7], pattern(peer, 0, 1, 7));
      EXPECT_EQ(second->segment(peer)[7], pattern(peer, 0, 2, 7));
    }
    second->enter_stage();
    wait_until_ready(second->all_reached(2));
  });
}

// The other ranks may have released their windows already.
TYPED_TEST_P(WindowContract, AWindowOutlivesTheOthersAndItsCommunicator) {
  this->on_every_rank([](Communicator&, comm::World& world) {
    std::shared_ptr<SharedWindow> window;
    {
      const auto communicator = everybody(world, 2);
      window = make_window(world, *communicator, 1000);
    }
    const int rank = window->rank();
    for (std::byte& byte : window->segment(rank)) byte = std::byte{0x5a};
    window->enter_stage();
    wait_until_ready(window->all_reached(1));
    if (rank != 0) return;
    for (int peer = 0; peer < window->size(); ++peer) {
      for (const std::byte byte : window->segment(peer)) EXPECT_EQ(byte, std::byte{0x5a});
    }
  });
}

TYPED_TEST_P(WindowContract, ImpossibleSizeIsAnErrorOnAllRanksAndTheNextWindowWorks) {
  this->on_every_rank([](Communicator& communicator, comm::World& world) {
    constexpr std::size_t kImpossibleSize = std::numeric_limits<std::size_t>::max() - 100;
    EXPECT_THROW(make_window(world, communicator, kImpossibleSize), BackendError);
    const auto window = make_window(world, communicator, 64);
    wait_until_ready(window->all_reached(window->enter_stage()));
  });
}

REGISTER_TYPED_TEST_SUITE_P(WindowContract, SegmentsAreZeroedAlignedAndOfTheRequestedSize,
                            WritesBeforeAStageAreVisibleInIt, OneRankCanBeAwaited,
                            WindowsAreIndependent, AWindowOutlivesTheOthersAndItsCommunicator,
                            ImpossibleSizeIsAnErrorOnAllRanksAndTheNextWindowWorks);

}  // namespace kolo::test

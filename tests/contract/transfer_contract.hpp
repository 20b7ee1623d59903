#pragma once

#include <cstddef>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "comm/world.hpp"
#include "contract/messages.hpp"
#include "kolo/communicator.hpp"
#include "kolo/error.hpp"

/// How transfers of every Communicator end: with an error, abandoned, or moved; see OnEveryRank.
namespace kolo::test {

template <class Ranks>
class TransferContract : public OnEveryRank<Ranks> {};

TYPED_TEST_SUITE_P(TransferContract);

/// Gives up all receives; returns once none writes to its buffer any more.
inline void give_up_receives(Communicator& communicator) {
  while (!communicator.give_up_receives().from.empty()) std::this_thread::yield();
}

/// A barrier.
inline void wait_for_all(Communicator& communicator, int tag) {
  std::vector<Transfer> transfers;
  for (int peer = 0; peer < communicator.size(); ++peer) {
    transfers.push_back(communicator.receive({}, peer, tag));
    transfers.push_back(communicator.send({}, peer, tag));
  }
  finish_all(transfers);
}

TYPED_TEST_P(TransferContract, GivenUpReceiveTakesNoLaterMessage) {
  this->on_every_rank([](Communicator& communicator, comm::World&) {
    const int rank = communicator.rank();
    const int next = (rank + 1) % communicator.size();
    const int before = (rank + communicator.size() - 1) % communicator.size();
    const std::vector<std::byte> untouched(100, std::byte{0xee});
    std::vector<std::byte> given_up = untouched;
    {
      const Transfer posted = communicator.receive(given_up, before, 3);
      give_up_receives(communicator);
      wait_for_all(communicator, 4);
      const auto sent = message(rank, next, 0, 100);
      Transfer sending = communicator.send(sent, next, 3);
      std::vector<std::byte> received(100);
      Transfer receiving = communicator.receive(received, before, 3);
      finish(receiving);
      finish(sending);
      EXPECT_EQ(received, message(before, rank, 0, 100));
    }
    EXPECT_EQ(given_up, untouched);
  });
}

// Receives that are given up in the middle of long messages: each message has either arrived
// completely, or the next receive gets it.
TYPED_TEST_P(TransferContract, GivenUpReceiveGetsTheWholeMessageOrNothing) {
  static constexpr std::size_t kSize = std::size_t{1} << 17;  // beyond MPI's eager limit
  this->on_every_rank([](Communicator& communicator, comm::World&) {
    const int rank = communicator.rank();
    const int next = (rank + 1) % communicator.size();
    const int before = (rank + communicator.size() - 1) % communicator.size();
    for (const int number : {0, 1, 3, 6}) {
      const std::vector<std::byte> untouched(kSize, std::byte{0xee});
      std::vector<std::byte> given_up = untouched;
      const auto sent = message(rank, next, number, kSize);
      const auto expected = message(before, rank, number, kSize);
      Transfer posted = communicator.receive(given_up, before, 3);
      Transfer sending = communicator.send(sent, next, 3);
      bool is_there = false;
      for (int looks = 0; looks < number && !is_there; ++looks) is_there = posted.ready();
      give_up_receives(communicator);
      is_there = given_up == expected;
      EXPECT_TRUE(is_there || given_up == untouched) << "message " << number << " came in part";
      std::vector<std::byte> received(is_there ? 0 : kSize);
      if (!is_there) {
        Transfer receiving = communicator.receive(received, before, 3);
        finish(receiving);
        EXPECT_TRUE(received == expected);
        EXPECT_TRUE(given_up == untouched);
      }
      finish(sending);
      wait_for_all(communicator, 4);
    }
  });
}

TYPED_TEST_P(TransferContract, WrongLengthIsAnErrorAndTheNextMessageArrives) {
  this->on_every_rank([](Communicator& communicator, comm::World&) {
    const int rank = communicator.rank();
    const int next = (rank + 1) % communicator.size();
    const int before = (rank + communicator.size() - 1) % communicator.size();
    for (const std::size_t size : {std::size_t{9}, std::size_t{11}, std::size_t{0}}) {
      const auto sent = message(rank, next, 0, size);
      Transfer sending = communicator.send(sent, next, 3);
      wait_for_message(communicator, 3);
      std::vector<std::byte> received(10);
      Transfer receiving = communicator.receive(received, before, 3);
      EXPECT_THROW(finish(receiving), BackendError) << size << " bytes";
      EXPECT_TRUE(receiving.ready()) << "it has ended";
      finish(sending);
    }
    const auto sent = message(rank, next, 1, 10);
    Transfer sending = communicator.send(sent, next, 3);
    std::vector<std::byte> received(10);
    Transfer receiving = communicator.receive(received, before, 3);
    finish(receiving);
    finish(sending);
    EXPECT_EQ(received, message(before, rank, 1, 10));
  });
}

TYPED_TEST_P(TransferContract, DestroyedReceiveTakesNothing) {
  this->on_every_rank([](Communicator& communicator, comm::World&) {
    const int rank = communicator.rank();
    const int next = (rank + 1) % communicator.size();
    const int before = (rank + communicator.size() - 1) % communicator.size();
    std::vector<std::byte> given_up(16, std::byte{0xee});
    for (int i = 0; i < 3; ++i) {
      Transfer receiving = communicator.receive(given_up, before, 4);
      EXPECT_FALSE(receiving.ready());
    }
    // Two rounds of empty messages around the ring, so that no rank sends before all have given up.
    for (int round = 0; round < communicator.size(); ++round) {
      Transfer sending = communicator.send({}, next, 6);
      Transfer receiving = communicator.receive({}, before, 6);
      finish(receiving);
      finish(sending);
    }
    const auto sent = message(rank, next, 0, 16);
    Transfer sending = communicator.send(sent, next, 4);
    std::vector<std::byte> received(16);
    Transfer receiving = communicator.receive(received, before, 4);
    finish(receiving);
    finish(sending);
    EXPECT_EQ(received, message(before, rank, 0, 16));
    EXPECT_EQ(given_up, std::vector<std::byte>(16, std::byte{0xee}));
  });
}

TYPED_TEST_P(TransferContract, AMovedTransferEndsOnce) {
  this->on_every_rank([](Communicator& communicator, comm::World&) {
    const int rank = communicator.rank();
    const auto first = message(rank, rank, 1, 4);
    const auto second = message(rank, rank, 2, 4);
    std::vector<std::byte> received(4);
    std::vector<std::byte> given_up(4);
    Transfer kept = communicator.receive(received, rank, 4);
    Transfer other = communicator.receive(given_up, rank, 5);
    other = std::move(kept);  // gives up its previous receive
    EXPECT_TRUE(kept.ready());
    EXPECT_FALSE(other.ready());
    Transfer sending = communicator.send(first, rank, 4);
    finish(other);
    finish(sending);
    EXPECT_EQ(received, first);
    Transfer again = communicator.receive(given_up, rank, 5);
    Transfer sending_again = communicator.send(second, rank, 5);
    finish(again);
    finish(sending_again);
    EXPECT_EQ(given_up, second);
  });
}

REGISTER_TYPED_TEST_SUITE_P(TransferContract, GivenUpReceiveTakesNoLaterMessage,
                            GivenUpReceiveGetsTheWholeMessageOrNothing,
                            WrongLengthIsAnErrorAndTheNextMessageArrives,
                            DestroyedReceiveTakesNothing, AMovedTransferEndsOnce);

}  // namespace kolo::test

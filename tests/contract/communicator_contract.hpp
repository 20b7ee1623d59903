#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "comm/world.hpp"
#include "kolo/communicator.hpp"
#include "kolo/error.hpp"

/// What every Communicator does, tested through the World that makes it.
///
/// An instantiation names a type with
///   static std::vector<int> sizes();   world sizes that it can run
///   static void run(int size, const std::function<void(comm::World&)>& body);   body on every rank
namespace kolo::test {

inline void finish(Transfer& transfer) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!transfer.ready()) {
    if (std::chrono::steady_clock::now() > deadline) {
      throw std::runtime_error("a transfer did not end within 30 s");
    }
    std::this_thread::yield();
  }
}

inline void finish_all(std::vector<Transfer>& transfers) {
  for (Transfer& transfer : transfers) finish(transfer);
}

inline Communicator::Envelope wait_for_message(Communicator& communicator, int tag) {
  for (;;) {
    if (const auto envelope = communicator.probe(tag)) return *envelope;
    std::this_thread::yield();
  }
}

inline std::unique_ptr<Communicator> everybody(comm::World& world, int channel = 0) {
  std::vector<int> ranks(static_cast<std::size_t>(world.topology().size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return world.make_communicator(ranks, channel);
}

/// The i-th byte of message `number` from `source` to `destination`.
inline std::byte pattern(int source, int destination, int number, std::size_t i) {
  const std::size_t value = i * 31 + static_cast<std::size_t>(source) * 7 +
                            static_cast<std::size_t>(destination) * 13 +
                            static_cast<std::size_t>(number) * 101 + (i >> 8);
  return static_cast<std::byte>(value & 0xff);
}

inline std::vector<std::byte> message(int source, int destination, int number, std::size_t size) {
  std::vector<std::byte> data(size);
  for (std::size_t i = 0; i < size; ++i) data[i] = pattern(source, destination, number, i);
  return data;
}

template <class Ranks>
class CommunicatorContract : public testing::Test {
 protected:
  /// On every rank of every world, with a communicator over all of them.
  void on_every_rank(const std::function<void(Communicator&, comm::World&)>& body) {
    for (const int size : Ranks::sizes()) {
      SCOPED_TRACE("world of " + std::to_string(size));
      Ranks::run(size, [&](comm::World& world) {
        const std::unique_ptr<Communicator> communicator = everybody(world);
        body(*communicator, world);
      });
    }
  }
};

TYPED_TEST_SUITE_P(CommunicatorContract);

TYPED_TEST_P(CommunicatorContract, KnowsItsRankAndSize) {
  this->on_every_rank([](Communicator& communicator, comm::World& world) {
    EXPECT_EQ(communicator.rank(), world.topology().rank);
    EXPECT_EQ(communicator.size(), world.topology().size);
    EXPECT_EQ(communicator.bytes_sent(), 0u);
  });
}

// Many messages of varying length between all pairs, and to itself, all posted at once.
TYPED_TEST_P(CommunicatorContract, MessagesOfOneTagArriveInOrder) {
  static constexpr int kMessages = 40;
  this->on_every_rank([](Communicator& communicator, comm::World&) {
    const int rank = communicator.rank();
    const auto length = [](int number) { return static_cast<std::size_t>(number * number); };
    std::vector<std::vector<std::byte>> sent;
    std::vector<std::vector<std::byte>> received;
    std::vector<Transfer> transfers;
    std::uint64_t bytes = 0;
    for (int peer = 0; peer < communicator.size(); ++peer) {
      for (int number = 0; number < kMessages; ++number) {
        received.emplace_back(length(number));
        transfers.push_back(communicator.receive(received.back(), peer, 5));
      }
    }
    for (int peer = 0; peer < communicator.size(); ++peer) {
      for (int number = 0; number < kMessages; ++number) {
        sent.push_back(message(rank, peer, number, length(number)));
        bytes += length(number);
        transfers.push_back(communicator.send(sent.back(), peer, 5));
      }
    }
    finish_all(transfers);
    std::size_t next = 0;
    for (int peer = 0; peer < communicator.size(); ++peer) {
      for (int number = 0; number < kMessages; ++number) {
        EXPECT_EQ(received[next++], message(peer, rank, number, length(number)))
            << "message " << number << " from " << peer << " to " << rank;
      }
    }
    EXPECT_EQ(communicator.bytes_sent(), bytes);
  });
}

TYPED_TEST_P(CommunicatorContract, TagsAreApart) {
  this->on_every_rank([](Communicator& communicator, comm::World&) {
    const int next = (communicator.rank() + 1) % communicator.size();
    const int before = (communicator.rank() + communicator.size() - 1) % communicator.size();
    const int last_tag = Communicator::kTagCount - 1;
    const auto low = message(communicator.rank(), next, 1, 10);
    const auto high = message(communicator.rank(), next, 2, 10);
    std::vector<Transfer> transfers;
    transfers.push_back(communicator.send(low, next, 0));
    transfers.push_back(communicator.send(high, next, last_tag));
    std::vector<std::byte> from_high(10);
    std::vector<std::byte> from_low(10);
    transfers.push_back(communicator.receive(from_high, before, last_tag));
    finish(transfers.back());
    transfers.push_back(communicator.receive(from_low, before, 0));
    finish_all(transfers);
    EXPECT_EQ(from_high, message(before, communicator.rank(), 2, 10));
    EXPECT_EQ(from_low, message(before, communicator.rank(), 1, 10));
  });
}

TYPED_TEST_P(CommunicatorContract, ChannelsAreApart) {
  this->on_every_rank([](Communicator& communicator, comm::World& world) {
    const auto other = everybody(world, 3);
    const int next = (communicator.rank() + 1) % communicator.size();
    const int before = (communicator.rank() + communicator.size() - 1) % communicator.size();
    const auto on_first = message(communicator.rank(), next, 1, 8);
    const auto on_other = message(communicator.rank(), next, 2, 8);
    std::vector<std::byte> from_first(8);
    std::vector<std::byte> from_other(8);
    std::vector<Transfer> transfers;
    transfers.push_back(communicator.send(on_first, next, 9));
    transfers.push_back(other->send(on_other, next, 9));
    transfers.push_back(other->receive(from_other, before, 9));
    finish(transfers.back());
    transfers.push_back(communicator.receive(from_first, before, 9));
    finish_all(transfers);
    EXPECT_EQ(from_first, message(before, communicator.rank(), 1, 8));
    EXPECT_EQ(from_other, message(before, communicator.rank(), 2, 8));
  });
}

TYPED_TEST_P(CommunicatorContract, AMessageMayBeEmpty) {
  this->on_every_rank([](Communicator& communicator, comm::World&) {
    std::vector<Transfer> transfers;
    for (int peer = 0; peer < communicator.size(); ++peer) {
      transfers.push_back(communicator.receive({}, peer, 1));
      transfers.push_back(communicator.send({}, peer, 1));
    }
    finish_all(transfers);
    EXPECT_EQ(communicator.bytes_sent(), 0u);
  });
}

// Longer than what MPI sends eagerly, received late.
TYPED_TEST_P(CommunicatorContract, ALargeMessageArrivesWhole) {
  static constexpr std::size_t kSize = (std::size_t{2} << 20) + 7;
  this->on_every_rank([](Communicator& communicator, comm::World&) {
    const int rank = communicator.rank();
    const int next = (rank + 1) % communicator.size();
    const int before = (rank + communicator.size() - 1) % communicator.size();
    const auto sent = message(rank, next, 0, kSize);
    Transfer sending = communicator.send(sent, next, 2);
    EXPECT_EQ(wait_for_message(communicator, 2).size_bytes, kSize);
    std::vector<std::byte> received(kSize);
    Transfer receiving = communicator.receive(received, before, 2);
    finish(receiving);
    finish(sending);
    EXPECT_TRUE(received == message(before, rank, 0, kSize));
    EXPECT_EQ(communicator.bytes_sent(), kSize);
  });
}

/// Gives up all receives; returns when none writes to its buffer any more.
inline void give_up_receives(Communicator& communicator) {
  while (!communicator.give_up_receives().from.empty()) std::this_thread::yield();
}

/// Returns when all ranks have called it.
inline void meet(Communicator& communicator, int tag) {
  std::vector<Transfer> transfers;
  for (int peer = 0; peer < communicator.size(); ++peer) {
    transfers.push_back(communicator.receive({}, peer, tag));
    transfers.push_back(communicator.send({}, peer, tag));
  }
  finish_all(transfers);
}

TYPED_TEST_P(CommunicatorContract, AReceiveThatWasGivenUpTakesNoLaterMessage) {
  this->on_every_rank([](Communicator& communicator, comm::World&) {
    const int rank = communicator.rank();
    const int next = (rank + 1) % communicator.size();
    const int before = (rank + communicator.size() - 1) % communicator.size();
    const std::vector<std::byte> untouched(100, std::byte{0xee});
    std::vector<std::byte> given_up = untouched;
    {
      const Transfer posted = communicator.receive(given_up, before, 3);
      give_up_receives(communicator);
      meet(communicator, 4);
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

// Receives that are given up in the middle of long messages: each message has then arrived
// completely, or not at all, and the next receive gets it.
TYPED_TEST_P(CommunicatorContract, AMessageThatArrivesIsGoneOnWithBeforeItsReceiveIsGivenUp) {
  static constexpr std::size_t kSize = std::size_t{1} << 18;  // more than MPI sends eagerly
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
      meet(communicator, 4);
    }
  });
}

TYPED_TEST_P(CommunicatorContract, AThousandTransfersMayBeUnderWay) {
  static constexpr int kMessages = 500;
  this->on_every_rank([](Communicator& communicator, comm::World&) {
    const int rank = communicator.rank();
    const int next = (rank + 1) % communicator.size();
    const int before = (rank + communicator.size() - 1) % communicator.size();
    std::vector<std::int32_t> sent(kMessages);
    std::vector<std::int32_t> received(kMessages, -1);
    std::vector<Transfer> receives;
    std::vector<Transfer> sends;
    for (std::size_t i = 0; i < kMessages; ++i) {
      const int tag = static_cast<int>(i % 100);
      sent[i] = rank * 1000 + static_cast<int>(i);
      receives.push_back(
          communicator.receive(std::as_writable_bytes(std::span(&received[i], 1)), before, tag));
      sends.push_back(communicator.send(std::as_bytes(std::span(&sent[i], 1)), next, tag));
    }
    while (!receives.empty()) {  // in the reverse order
      finish(receives.back());
      receives.pop_back();
    }
    finish_all(sends);
    for (int i = 0; i < kMessages; ++i) {
      EXPECT_EQ(received[static_cast<std::size_t>(i)], before * 1000 + i);
    }
  });
}

TYPED_TEST_P(CommunicatorContract, ProbeFindsWhatWaitsAndOnlyUnderItsTag) {
  this->on_every_rank([](Communicator& communicator, comm::World&) {
    const int rank = communicator.rank();
    const auto length = [](int source) { return static_cast<std::size_t>(3 + 2 * source); };
    std::vector<std::vector<std::byte>> sent;
    std::vector<Transfer> sends;
    for (int peer = 0; peer < communicator.size(); ++peer) {
      sent.push_back(message(rank, peer, 0, length(rank)));
      sends.push_back(communicator.send(sent.back(), peer, 7));
    }
    std::vector<int> sources;
    for (int i = 0; i < communicator.size(); ++i) {
      const Communicator::Envelope envelope = wait_for_message(communicator, 7);
      EXPECT_EQ(envelope.size_bytes, length(envelope.source));
      EXPECT_FALSE(communicator.probe(8));
      std::vector<std::byte> received(envelope.size_bytes);
      Transfer receiving = communicator.receive(received, envelope.source, 7);
      finish(receiving);
      EXPECT_EQ(received, message(envelope.source, rank, 0, length(envelope.source)));
      sources.push_back(envelope.source);
    }
    finish_all(sends);
    EXPECT_FALSE(communicator.probe(7));
    std::sort(sources.begin(), sources.end());
    for (int i = 0; i < communicator.size(); ++i) {
      EXPECT_EQ(sources[static_cast<std::size_t>(i)], i);
    }
  });
}

TYPED_TEST_P(CommunicatorContract, AnotherLengthIsAnErrorAndTheNextMessageIsFine) {
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

TYPED_TEST_P(CommunicatorContract, AReceiveThatWasGivenUpTakesNothing) {
  this->on_every_rank([](Communicator& communicator, comm::World&) {
    const int rank = communicator.rank();
    const int next = (rank + 1) % communicator.size();
    const int before = (rank + communicator.size() - 1) % communicator.size();
    std::vector<std::byte> given_up(16, std::byte{0xee});
    for (int i = 0; i < 3; ++i) {
      Transfer receiving = communicator.receive(given_up, before, 4);
      EXPECT_FALSE(receiving.ready());
    }
    // Two empty rounds around the ring, so that no rank sends before all have given up.
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

TYPED_TEST_P(CommunicatorContract, AMovedTransferEndsOnce) {
  this->on_every_rank([](Communicator& communicator, comm::World&) {
    const int rank = communicator.rank();
    const auto first = message(rank, rank, 1, 4);
    const auto second = message(rank, rank, 2, 4);
    std::vector<std::byte> received(4);
    std::vector<std::byte> given_up(4);
    Transfer kept = communicator.receive(received, rank, 4);
    Transfer other = communicator.receive(given_up, rank, 5);
    other = std::move(kept);  // gives up the receive that was there
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

TYPED_TEST_P(CommunicatorContract, WhatIsOutOfRangeIsRefusedAtTheCall) {
  this->on_every_rank([](Communicator& communicator, comm::World&) {
    std::array<std::byte, 1> byte{};
    const std::span<std::byte> too_long(byte.data(), Communicator::kMaxMessageBytes + 1);
    const auto send = [&](std::span<const std::byte> data, int rank, int tag) {
      static_cast<void>(communicator.send(data, rank, tag));
    };
    const auto receive = [&](std::span<std::byte> data, int rank, int tag) {
      static_cast<void>(communicator.receive(data, rank, tag));
    };
    EXPECT_THROW(send(byte, -1, 0), InvalidArgument);
    EXPECT_THROW(send(byte, communicator.size(), 0), InvalidArgument);
    EXPECT_THROW(send(byte, 0, -1), InvalidArgument);
    EXPECT_THROW(send(byte, 0, Communicator::kTagCount), InvalidArgument);
    EXPECT_THROW(send(too_long, 0, 0), InvalidArgument);
    EXPECT_THROW(receive(byte, -1, 0), InvalidArgument);
    EXPECT_THROW(receive(byte, communicator.size(), 0), InvalidArgument);
    EXPECT_THROW(receive(byte, 0, -1), InvalidArgument);
    EXPECT_THROW(receive(byte, 0, Communicator::kTagCount), InvalidArgument);
    EXPECT_THROW(receive(too_long, 0, 0), InvalidArgument);
    EXPECT_THROW(communicator.probe(-1), InvalidArgument);
    EXPECT_THROW(communicator.probe(Communicator::kTagCount), InvalidArgument);
    EXPECT_EQ(communicator.bytes_sent(), 0u);
  });
}

// Even and odd world ranks, on one channel and the same tags at the same time.
TYPED_TEST_P(CommunicatorContract, GroupsCountTheirOwnRanks) {
  this->on_every_rank([](Communicator&, comm::World& world) {
    const comm::Topology& topology = world.topology();
    std::vector<int> members;
    for (int rank = topology.rank % 2; rank < topology.size; rank += 2) members.push_back(rank);
    const auto group = world.make_communicator(members, 5);
    ASSERT_EQ(group->size(), static_cast<int>(members.size()));
    ASSERT_EQ(group->rank(), topology.rank / 2);
    std::vector<std::int32_t> received(members.size(), -1);
    const std::int32_t own = 100 + topology.rank;
    std::vector<Transfer> transfers;
    for (int peer = 0; peer < group->size(); ++peer) {
      transfers.push_back(group->send(std::as_bytes(std::span(&own, 1)), peer, 1));
    }
    for (int i = 0; i < group->size(); ++i) {
      const Communicator::Envelope envelope = wait_for_message(*group, 1);
      std::int32_t& place = received[static_cast<std::size_t>(envelope.source)];
      Transfer receiving =
          group->receive(std::as_writable_bytes(std::span(&place, 1)), envelope.source, 1);
      finish(receiving);
    }
    finish_all(transfers);
    for (std::size_t i = 0; i < members.size(); ++i) EXPECT_EQ(received[i], 100 + members[i]);
  });
}

REGISTER_TYPED_TEST_SUITE_P(CommunicatorContract, KnowsItsRankAndSize,
                            MessagesOfOneTagArriveInOrder, TagsAreApart, ChannelsAreApart,
                            AMessageMayBeEmpty, ALargeMessageArrivesWhole,
                            AThousandTransfersMayBeUnderWay, ProbeFindsWhatWaitsAndOnlyUnderItsTag,
                            AnotherLengthIsAnErrorAndTheNextMessageIsFine,
                            AReceiveThatWasGivenUpTakesNothing,
                            AReceiveThatWasGivenUpTakesNoLaterMessage,
                            AMessageThatArrivesIsGoneOnWithBeforeItsReceiveIsGivenUp,
                            AMovedTransferEndsOnce, WhatIsOutOfRangeIsRefusedAtTheCall,
                            GroupsCountTheirOwnRanks);

}  // namespace kolo::test

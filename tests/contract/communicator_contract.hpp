#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "comm/world.hpp"
#include "contract/messages.hpp"
#include "kolo/communicator.hpp"
#include "kolo/error.hpp"
#include "support/sanitizers.hpp"

/// Requirements on every Communicator, tested through the World that makes it; see OnEveryRank.
namespace kolo::test {

template <class Ranks>
class CommunicatorContract : public OnEveryRank<Ranks> {};

TYPED_TEST_SUITE_P(CommunicatorContract);

TYPED_TEST_P(CommunicatorContract, KnowsItsRankAndSize) {
  this->on_every_rank([](Communicator& communicator, comm::World& world) {
    EXPECT_EQ(communicator.rank(), world.topology().rank);
    EXPECT_EQ(communicator.size(), world.topology().size);
    EXPECT_EQ(communicator.bytes_sent(), 0u);
  });
}

// Many messages of varying length between all pairs of ranks, including self, all in flight.
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

TYPED_TEST_P(CommunicatorContract, TagsAreIndependent) {
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

TYPED_TEST_P(CommunicatorContract, ChannelsAreIndependent) {
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

// Longer than MPI's eager limit, and received late.
TYPED_TEST_P(CommunicatorContract, ALargeMessageArrivesWhole) {
  static constexpr std::size_t kSize = (std::size_t{kIsSanitized ? 1 : 16} << 17) + 7;
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
    while (!receives.empty()) {  // in reverse order
      finish(receives.back());
      receives.pop_back();
    }
    finish_all(sends);
    for (int i = 0; i < kMessages; ++i) {
      EXPECT_EQ(received[static_cast<std::size_t>(i)], before * 1000 + i);
    }
  });
}

TYPED_TEST_P(CommunicatorContract, ProbeFindsWaitingMessagesUnderTheirTagOnly) {
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

TYPED_TEST_P(CommunicatorContract, OutOfRangeArgumentsThrowAtTheCall) {
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

// Even and odd world ranks, simultaneously on one channel with the same tags.
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
                            MessagesOfOneTagArriveInOrder, TagsAreIndependent,
                            ChannelsAreIndependent, AMessageMayBeEmpty, ALargeMessageArrivesWhole,
                            AThousandTransfersMayBeUnderWay,
                            ProbeFindsWaitingMessagesUnderTheirTagOnly,
                            OutOfRangeArgumentsThrowAtTheCall, GroupsCountTheirOwnRanks);

}  // namespace kolo::test

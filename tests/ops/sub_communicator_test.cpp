#include <array>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "contract/ranks.hpp"
#include "kolo/error.hpp"
#include "ops/steps/nodes.hpp"

namespace kolo::ops::sub_communicator_test {

using test::Rank;

constexpr int kFirstTag = 100;
constexpr int kTagCount = 10;

void finish(Transfer& transfer) {
  while (!transfer.ready()) std::this_thread::yield();
}

std::span<std::byte> bytes_of(int& value) { return std::as_writable_bytes(std::span(&value, 1)); }

/// Splits five ranks into the groups 3, 0, 4 (in this order) and 1, 2.
SubCommunicator make_group(const Rank& rank) {
  const bool is_in_first = rank.rank == 0 || rank.rank > 2;
  return {rank.communicator, is_in_first ? std::vector<int>{3, 0, 4} : std::vector<int>{1, 2},
          kFirstTag, kTagCount};
}

TEST(SubCommunicatorTest, Members_AreNumberedInTheOrderGiven) {
  test::run_on_ranks(5, 64, 1, [](const Rank& rank) {
    const SubCommunicator group = make_group(rank);
    EXPECT_EQ(group.rank(), (std::array{1, 0, 1, 0, 2})[static_cast<std::size_t>(rank.rank)]);
    EXPECT_EQ(group.size(), rank.rank == 1 || rank.rank == 2 ? 2 : 3);
  });
}

TEST(SubCommunicatorTest, Messages_ReachTheMemberUnderTheirTag) {
  for (const std::uint64_t seed : {1u, 2u}) {
    test::run_on_ranks(5, 64, seed, [](const Rank& rank) {
      SubCommunicator group = make_group(rank);
      const int next = (group.rank() + 1) % group.size();
      const int previous = (group.rank() + group.size() - 1) % group.size();
      // Receives the last tag first; a message of the parent under the same tag must not interfere.
      std::array<int, 3> sent{rank.rank * 10, rank.rank * 10 + 1, rank.rank * 10 + 2};
      std::array<Transfer, 3> sends{
          group.send(bytes_of(sent[0]), next, kTagCount - 1),
          group.send(bytes_of(sent[1]), next, 0),
          rank.communicator.send(bytes_of(sent[2]), (rank.rank + 1) % 5, 0)};
      std::array<int, 3> received{};
      std::array<Transfer, 3> receives{
          group.receive(bytes_of(received[1]), previous, 0),
          group.receive(bytes_of(received[0]), previous, kTagCount - 1),
          rank.communicator.receive(bytes_of(received[2]), (rank.rank + 4) % 5, 0)};
      for (Transfer& transfer : receives) finish(transfer);
      for (Transfer& transfer : sends) finish(transfer);
      const std::array<int, 5> before{3, 2, 1, 4, 0};  // each one's neighbour in its group
      const int source = before[static_cast<std::size_t>(rank.rank)];
      EXPECT_EQ(received, (std::array{source * 10, source * 10 + 1, (rank.rank + 4) % 5 * 10 + 2}));
      EXPECT_EQ(group.bytes_sent(), 2 * sizeof(int));
      EXPECT_EQ(rank.communicator.bytes_sent(), 3 * sizeof(int)) << "the parent counts all";
    });
  }
}

TEST(SubCommunicatorTest, Probe_NamesTheMember) {
  test::run_on_ranks(5, 64, 1, [](const Rank& rank) {
    SubCommunicator group = make_group(rank);
    int value = rank.rank;
    if (rank.rank == 4) {
      Transfer send = group.send(bytes_of(value), 1, 7);
      finish(send);
    }
    if (rank.rank != 0) return;
    std::optional<Communicator::Envelope> envelope;
    while (!envelope) envelope = group.probe(7);
    EXPECT_EQ(envelope->source, 2);
    EXPECT_EQ(envelope->size_bytes, sizeof(int));
    Transfer receive = group.receive(bytes_of(value), envelope->source, 7);
    finish(receive);
    EXPECT_EQ(value, 4);
    EXPECT_FALSE(group.probe(7));
  });
}

TEST(SubCommunicatorTest, WhatIsOutOfRange_IsRefused) {
  test::run_on_ranks(5, 64, 1, [](const Rank& rank) {
    SubCommunicator group = make_group(rank);
    int value = 0;
    for (const int peer : {-1, group.size()}) {
      EXPECT_THROW(group.send(bytes_of(value), peer, 0), InvalidArgument) << peer;
      EXPECT_THROW(group.receive(bytes_of(value), peer, 0), InvalidArgument) << peer;
    }
    for (const int tag : {-1, kTagCount}) {
      EXPECT_THROW(group.send(bytes_of(value), 0, tag), InvalidArgument) << tag;
      EXPECT_THROW(group.receive(bytes_of(value), 0, tag), InvalidArgument) << tag;
      EXPECT_THROW(group.probe(tag), InvalidArgument) << tag;
    }
    EXPECT_EQ(group.bytes_sent(), 0u);
    EXPECT_THROW(SubCommunicator(rank.communicator, {(rank.rank + 1) % 5}, 0, 1), InvalidArgument);
  });
}

}  // namespace kolo::ops::sub_communicator_test

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "extras/data/sample_sequence.hpp"
#include "kolo/error.hpp"
#include "runtime/runtimes.hpp"

namespace kolo::test::stream_position_test {

using extras::StreamPosition;
using Elements = std::vector<std::uint64_t>;

Elements taken(const StreamPosition& position, std::uint64_t end) {
  Elements elements;
  for (std::uint64_t element = 0; element < end; ++element) {
    if (position.takes(element)) elements.push_back(element);
  }
  return elements;
}

TEST(StreamPositionTest, Ranks_TakeBlocksInTurn) {
  EXPECT_EQ(taken({1, 0, 3}, 8), (Elements{0, 3, 6}));
  EXPECT_EQ(taken({1, 2, 3}, 8), (Elements{2, 5}));
  EXPECT_EQ(taken({2, 1, 2}, 11), (Elements{2, 3, 6, 7, 10}));
}

TEST(StreamPositionTest, Resumed_TakesWhatIsLeftAtAnyNumberOfRanks) {
  constexpr std::uint64_t kElements = 60;
  for (int before = 1; before <= 4; ++before) {
    for (int after = 1; after <= 4; ++after) {
      for (const std::size_t block : {1U, 2U, 3U}) {
        const std::size_t blocks = 2;
        std::vector<int> times(kElements);
        std::string state;
        for (int rank = 0; rank < before; ++rank) {
          StreamPosition killed(block, rank, before);
          const Elements own = taken(killed, kElements);
          for (std::size_t i = 0; i < blocks * block; ++i) ++times[own[i]];
          killed.consume(blocks * block);
          const std::string previous_state = std::exchange(state, killed.state());
          EXPECT_TRUE(rank == 0 || previous_state == state) << previous_state << state;
        }
        for (int rank = 0; rank < after; ++rank) {
          StreamPosition resumed(block + 1, rank, after);
          resumed.set_state(state);
          EXPECT_EQ(resumed.start(), blocks * block * static_cast<std::size_t>(before));
          for (const std::uint64_t element : taken(resumed, kElements)) ++times[element];
        }
        EXPECT_EQ(times, std::vector<int>(kElements, 1)) << before << " ranks, then " << after;
      }
    }
  }
}

TEST(StreamPositionTest, ResumedAndConsumed_CountsBoth) {
  StreamPosition position(2, 1, 3);
  position.set_state(R"({"epoch":4,"elements":5})");
  position.consume(2);
  EXPECT_EQ(position.state(), R"({"epoch":4,"elements":11})");
}

TEST(StreamPositionTest, EndOfAnEpoch_BeginsAnewFromTheStreamsBeginning) {
  StreamPosition position(1, 1, 2);
  position.set_state(R"({"epoch":4,"elements":3})");
  position.consume(2);
  position.end_epoch();
  EXPECT_EQ(position.epoch(), 5);
  EXPECT_EQ(taken(position, 5), (Elements{1, 3}));
  EXPECT_EQ(position.state(), R"({"epoch":5,"elements":0})");
}

TEST(StreamPositionTest, StateWithinABlock_IsRefused) {
  StreamPosition position(4, 0, 2);
  position.consume(6);
  expect_contains(text_thrown_by<InvalidArgument>([&] { position.state(); }),
                  "has consumed 6 elements since the run began, and a block has 4");
  position.consume(2);
  EXPECT_EQ(position.state(), R"({"epoch":0,"elements":16})");
}

TEST(StreamPositionTest, BadInput_IsRefused) {
  expect_contains(text_thrown_by<InvalidArgument>([] { StreamPosition(0, 0, 1); }), "block is 0");
  StreamPosition position(1, 0, 2);
  position.consume(3);
  for (const char* text : {"", "{}", R"({"epoch":1})", R"({"epoch":-1,"elements":0})",
                           R"({"epoch":1,"elements":1.5})"}) {
    expect_contains(text_thrown_by<InvalidArgument>([&] { position.set_state(text); }),
                    "StreamShard::set_state: the state is damaged");
  }
  EXPECT_EQ(position.state(), R"({"epoch":0,"elements":6})");
}

}  // namespace kolo::test::stream_position_test

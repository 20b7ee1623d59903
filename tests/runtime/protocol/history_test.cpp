#include "runtime/protocol/history.hpp"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace kolo::runtime::history_test {

/// Batches of one bit each, written as letters: 'a' is bit 0.
void run(History& history, const std::string& letters) {
  for (const char letter : letters) history.append(history.intern({letter - 'a'}));
}

void forget(History& history, int bit) {
  Bits bits;
  bits.set(bit);
  history.forget(bits);
}

std::string predicted(const History& history) {
  if (history.predict() == nullptr) return "";
  std::string letters;
  for (const int bit : history.predict()->bits) letters += static_cast<char>('a' + bit);
  return letters;
}

/// How many of `letters` were predicted wrongly when they ran.
int mistakes(History& history, const std::string& letters) {
  int count = 0;
  for (const char letter : letters) {
    if (predicted(history) != std::string(1, letter)) ++count;
    run(history, std::string(1, letter));
  }
  return count;
}

std::string repeat(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

TEST(HistoryTest, FirstRound_PredictsNothing) {
  History history;
  EXPECT_EQ(predicted(history), "");
  run(history, "ab");
  EXPECT_EQ(predicted(history), "");
}

TEST(HistoryTest, SteadyProgram_IsPredictedFromTheThirdRoundOn) {
  History history;
  run(history, "abcdabcda");
  EXPECT_EQ(mistakes(history, "bcd" + repeat("abcd", 5)), 0);
}

// As with a step in its name; the table gives it the bit of an older one.
TEST(HistoryTest, BatchesThatRunOnce_SpoilNoPrediction) {
  History history;
  run(history, repeat("abcd", 4));
  for (int step = 0; step < 40; ++step) {
    const char once = static_cast<char>('e' + step % 10);
    forget(history, once - 'a');
    EXPECT_EQ(mistakes(history, "ab"), 0) << "step " << step;
    run(history, std::string(1, once));
    EXPECT_EQ(mistakes(history, "cd"), 0) << "step " << step;
  }
}

TEST(HistoryTest, AlternatingOrders_ArePredicted) {
  History history;
  const std::string period = repeat("abc", 3) + repeat("cba", 3);
  run(history, repeat(period, 3));
  EXPECT_EQ(mistakes(history, repeat(period, 3)), 0);
}

TEST(HistoryTest, DisjointPhases_ArePredicted) {
  History history;
  const std::string period = repeat("ab", 4) + repeat("cde", 2);
  run(history, repeat(period, 3));
  EXPECT_EQ(mistakes(history, repeat(period, 3)), 0);
}

TEST(HistoryTest, PhasesWithRandomOrders_AreDistinguished) {
  History history;
  // Rounds {a b c} and {d e} alternate; the order within a round changes.
  run(history,
      "abc"
      "de"
      "bac"
      "ed"
      "cab"
      "de");
  run(history, "b");
  EXPECT_NE(std::string("ac").find(predicted(history)), std::string::npos);
  run(history, "ca");
  EXPECT_NE(std::string("de").find(predicted(history)), std::string::npos);
}

TEST(HistoryTest, LongPeriodsWithRandomOrders_AreDistinguished) {
  History history;
  std::mt19937 random(1);
  const auto run_shuffled = [&](std::string letters) {
    std::shuffle(letters.begin(), letters.end(), random);
    run(history, letters);
  };
  // Ten rounds of {a b c d}, one of {e f}: as when training alternates with evaluation.
  for (int period = 0; period < 20; ++period) {
    for (int round = 0; round < 11; ++round) {
      const bool is_right = (predicted(history) >= "e") == (round == 10);
      EXPECT_TRUE(is_right || period <= 3) << period << ", " << round;
      run_shuffled(round == 10 ? "ef" : "abcd");
    }
  }
}

TEST(HistoryTest, ChangedOrder_CostsOneRoundOfMistakes) {
  History history;
  run(history, repeat("abcdef", 30));
  run(history, "fedcba");
  EXPECT_EQ(mistakes(history, repeat("fedcba", 30)), 0);
}

TEST(HistoryTest, SplitBatch_PredictsTheRest) {
  History history;
  for (int i = 0; i < 3; ++i) {
    history.append(history.intern({0}));
    history.append(history.intern({1, 2}));
  }
  history.append(history.intern({0}));
  EXPECT_EQ(predicted(history), "bc");
  history.append(history.intern({1}));
  EXPECT_EQ(predicted(history), "c");
}

TEST(HistoryTest, EvictedBit_IsForgotten) {
  History history;
  run(history, "abcabcab");
  EXPECT_EQ(predicted(history), "c");
  forget(history, 2);
  EXPECT_EQ(predicted(history), "a");
  Bits all;
  for (const int bit : {0, 1, 2}) all.set(bit);
  EXPECT_EQ(history.largest_within(all, 2), nullptr);
  run(history,
      "ab"
      "ac"
      "ab");
  EXPECT_EQ(predicted(history), "a");
}

TEST(HistoryTest, LargestWithin_FindsTheLargestBatchThatFits) {
  History history;
  history.intern({0});
  const auto two = history.intern({0, 1});
  const auto three = history.intern({0, 1, 2});
  history.intern({1, 2});
  Bits ready;
  for (const int bit : {0, 1, 3}) ready.set(bit);
  EXPECT_EQ(history.largest_within(ready, 0), two);
  EXPECT_EQ(history.largest_within(ready, 1), nullptr);
  EXPECT_EQ(history.largest_within(ready, 3), nullptr);
  ready.set(2);
  EXPECT_EQ(history.largest_within(ready, 0), three);
  EXPECT_EQ(history.intern({0, 1}), two);
}

TEST(HistoryTest, DroppedRounds_LeavePredictionsRight) {
  History history(64);
  const std::string period = repeat("abc", 2) + repeat("cba", 2);
  run(history, repeat(period, 20));
  EXPECT_EQ(mistakes(history, repeat(period, 20)), 0);
}

TEST(HistoryTest, EvictedBits_LeaveNoCompositions) {
  History history;
  for (int i = 0; i < 10'000; ++i) {
    history.append(history.intern({i % 3}));
    history.append(history.intern({3, 4 + i % 2}));
    forget(history, i % 3);
  }
  EXPECT_LT(history.composition_count(), 20u);
  run(history, "abcabca");
  EXPECT_EQ(predicted(history), "b");
}

TEST(HistoryTest, RandomSets_AreForgottenWithTheirBatches) {
  History history(64);
  for (int i = 1; i < 4096; ++i) {  // every set of twelve bits once
    std::vector<int> bits;
    for (int bit = 0; bit < 12; ++bit) {
      if ((i >> bit & 1) != 0) bits.push_back(bit);
    }
    history.append(history.intern(bits));
  }
  EXPECT_LT(history.composition_count(), 256u);
  run(history, repeat("abcd", 20));
  EXPECT_EQ(mistakes(history, repeat("abcd", 20)), 0);
}

TEST(HistoryTest, NothingRunsTwice_MemoryStaysBounded) {
  History history(16);
  for (int bit = 0; bit < 200; ++bit) history.append(history.intern({bit}));
  run(history, "abab");
  EXPECT_EQ(predicted(history), "a");
}

}  // namespace kolo::runtime::history_test

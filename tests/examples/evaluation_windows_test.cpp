#include "gpt/evaluation_windows.hpp"

#include <random>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

namespace evaluation_windows_test {

using Starts = std::vector<std::size_t>;

std::string random_text(std::size_t bytes, unsigned letters, unsigned seed) {
  std::mt19937 generator(seed);
  std::string text;
  while (text.size() < bytes) text += static_cast<char>('a' + generator() % letters);
  return text;
}

TEST(OccurIn, EveryWindow_IsFoundWhereSearchFindsIt) {
  // With few letters and short windows, about half of the windows occur.
  const std::string training = random_text(3000, 3, 1);
  const std::string text = random_text(500, 3, 2);
  for (const std::size_t length : {1U, 6U, 7U, 8U, 65U}) {
    Starts starts;
    for (std::size_t i = 0; i + length <= text.size(); ++i) starts.push_back(i);
    const std::vector<bool> occurs = gpt::occur_in(training, text, starts, length);
    ASSERT_EQ(occurs.size(), starts.size());
    for (const std::size_t start : starts) {
      const bool expected = training.find(text.substr(start, length)) != std::string::npos;
      EXPECT_EQ(occurs[start], expected) << "start " << start << ", length " << length;
    }
  }
}

TEST(OccurIn, BothEndsOfTheTrainingText_AreSearched) {
  const std::string training = "first ... last";
  const std::string text = "lastfirstmost";
  EXPECT_EQ(gpt::occur_in(training, text, Starts{0}, 4), std::vector<bool>{true});
  EXPECT_EQ(gpt::occur_in(training, text, Starts{4, 9}, 5), (std::vector<bool>{true, false}));
}

TEST(OccurIn, TrainingTextShorterThanAWindow_HasNone) {
  EXPECT_EQ(gpt::occur_in("abc", "abcd", Starts{0}, 4), std::vector<bool>{false});
}

TEST(EvaluationWindows, ThoseThatOccurInTraining_AreLeftOut) {
  const auto windows = gpt::evaluation_windows("..0123456789..", "abcd6789efgh0123", 4, 100);
  EXPECT_EQ(windows.starts, (Starts{0, 8}));
  EXPECT_EQ(windows.in_training, 0U);
  EXPECT_EQ(windows.left_out, 2U);
}

TEST(EvaluationWindows, AllOccurInTraining_AllAreKeptAndCounted) {
  const auto windows = gpt::evaluation_windows("0123456789", "01234567", 4, 100);
  EXPECT_EQ(windows.starts, (Starts{0, 4}));
  EXPECT_EQ(windows.in_training, 2U);
  EXPECT_EQ(windows.left_out, 0U);
}

}  // namespace evaluation_windows_test

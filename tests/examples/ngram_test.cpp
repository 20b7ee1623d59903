#include "gpt/ngram.hpp"

#include <array>
#include <cmath>
#include <random>
#include <string>

#include <gtest/gtest.h>

namespace ngram_test {

constexpr std::array<std::size_t, 1> kFromTheStart{0};

std::string repeat(const std::string& text, int times) {
  std::string result;
  for (int i = 0; i < times; ++i) result += text;
  return result;
}

double entropy(const gpt::NgramModel& model, const std::string& text, int order) {
  return model.cross_entropy(text, kFromTheStart, text.size(), order);
}

TEST(NgramModel, Probability_SumsToOneAfterSeenAndUnseenContexts) {
  const gpt::NgramModel model("abracadabra, abracadabra! alakazam");
  for (int order = 1; order <= gpt::NgramModel::kMaxOrder; ++order) {
    for (const char* before : {"", "a", "ab", "zz", "za", "m"}) {
      double sum = 0;
      for (int next = 0; next < 256; ++next) {
        const double p = model.probability(before, static_cast<unsigned char>(next), order);
        EXPECT_GT(p, 0);
        sum += p;
      }
      EXPECT_NEAR(sum, 1, 1e-12) << "order " << order << " after '" << before << "'";
    }
  }
}

// "aab": once seen b, twice a, so n1 = n2 = 1 and the discount is 1/3; the two followers leave
// 2/3 of 3 counts to the uniform distribution.
TEST(NgramModel, Unigram_IsDiscountedAsByHand) {
  const gpt::NgramModel model("aab");
  const double uniform = (2.0 / 3) / 3 / 256;
  EXPECT_NEAR(model.probability("", 'a', 1), (2 - 1.0 / 3) / 3 + uniform, 1e-15);
  EXPECT_NEAR(model.probability("", 'b', 1), (1 - 1.0 / 3) / 3 + uniform, 1e-15);
  EXPECT_NEAR(model.probability("", 'c', 1), uniform, 1e-15);
}

// The bigrams of "aab" are aa and ab, once each: discount 1, which is limited to 0.99.
TEST(NgramModel, Bigram_IsInterpolatedWithTheUnigramAsByHand) {
  const gpt::NgramModel model("aab");
  const double unigram = model.probability("", 'a', 1);
  EXPECT_NEAR(model.probability("a", 'a', 2), (1 - 0.99) / 2 + 0.99 * 2 / 2 * unigram, 1e-15);
}

TEST(NgramModel, UnseenContext_FallsBackToTheShorterOne) {
  const gpt::NgramModel model("abcabc");
  EXPECT_EQ(model.probability("xb", 'c', 3), model.probability("b", 'c', 2));
  EXPECT_EQ(model.probability("xy", 'c', 3), model.probability("", 'c', 1));
  EXPECT_EQ(model.probability("b", 'c', 3), model.probability("b", 'c', 2));
}

TEST(NgramModel, UniformSource_HasEntropyLogOfItsAlphabet) {
  std::mt19937 generator(7);
  std::string text;
  for (int i = 0; i < 400000; ++i) text += static_cast<char>('a' + generator() % 8);
  const gpt::NgramModel model(text.substr(0, 300000));
  for (int order = 1; order <= gpt::NgramModel::kMaxOrder; ++order) {
    EXPECT_NEAR(entropy(model, text.substr(300000), order), std::log(8.0), 0.005) << order;
  }
}

// In repeated "aabb", one byte of context leaves two candidates, two bytes leave one.
TEST(NgramModel, PeriodicSource_IsKnownFromTwoBytesOfThePast) {
  const gpt::NgramModel model(repeat("aabb", 5000));
  const std::string held_out = repeat("aabb", 1000);
  EXPECT_NEAR(entropy(model, held_out, 1), std::log(2.0), 0.001);
  EXPECT_NEAR(entropy(model, held_out, 2), std::log(2.0), 0.001);
  EXPECT_NEAR(entropy(model, held_out, 3), 0, 0.001);
}

TEST(NgramModel, CrossEntropy_CountsTheTargetsOfTheWindows) {
  const gpt::NgramModel model("aab");
  constexpr std::array<std::size_t, 2> starts{0, 3};
  const double expected =
      -(std::log(model.probability("a", 'b', 2)) + std::log(model.probability("a", 'a', 2))) / 2;
  EXPECT_NEAR(model.cross_entropy("abcaa", starts, 2, 2), expected, 1e-15);
}

}  // namespace ngram_test

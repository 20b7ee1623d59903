#include "runtime/protocol/bits.hpp"

#include <vector>

#include <gtest/gtest.h>

namespace kolo::runtime::bits_test {

Bits make(const std::vector<int>& bits) {
  Bits made;
  for (const int bit : bits) made.set(bit);
  return made;
}

std::vector<int> list(const Bits& bits) {
  std::vector<int> found;
  bits.for_each([&](int bit) { found.push_back(bit); });
  return found;
}

TEST(BitsTest, SetBits_AreHeldAcrossWords) {
  Bits bits = make({200, 0, 63, 64});
  EXPECT_EQ(list(bits), (std::vector<int>{0, 63, 64, 200}));
  bits.reset(63);
  bits.reset(1000);  // beyond the stored words
  EXPECT_FALSE(bits.test(63));
  EXPECT_TRUE(bits.test(64));
  EXPECT_FALSE(bits.test(1000));
}

TEST(BitsTest, Comparison_IgnoresTheLength) {
  Bits grown = make({3, 500});
  grown.reset(500);
  EXPECT_EQ(grown, make({3}));
  EXPECT_EQ(make({3}), grown);
  grown.reset(3);
  EXPECT_TRUE(grown.none());
  EXPECT_EQ(grown, Bits());
}

TEST(BitsTest, SetOperations_TakeDifferentLengths) {
  const Bits high = make({1, 130});
  const Bits low = make({1, 2});
  EXPECT_EQ(high | low, make({1, 2, 130}));
  EXPECT_EQ(low | high, make({1, 2, 130}));
  EXPECT_EQ(high & low, make({1}));
  EXPECT_EQ(low & high, make({1}));
  EXPECT_EQ(high - low, make({130}));
  EXPECT_EQ(low - high, make({2}));
}

TEST(BitsTest, Contains_IsTrueForSubsetsOnly) {
  EXPECT_TRUE(make({1, 130}).contains(make({130})));
  EXPECT_TRUE(make({1}).contains(Bits()));
  EXPECT_FALSE(make({1}).contains(make({1, 130})));
}

TEST(BitsTest, Words_AreReadAndWritten) {
  Bits copy;
  const Bits bits = make({5, 69, 190});
  for (std::size_t i = 0; i < bits.word_count(); ++i) copy.set_word(i, bits.word(i));
  EXPECT_EQ(copy, bits);
  EXPECT_EQ(bits.word(1), std::uint64_t{1} << 5);
  EXPECT_EQ(bits.word(9), 0u);
}

}  // namespace kolo::runtime::bits_test

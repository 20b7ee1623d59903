// The guarantees of every codec, and how each of them encodes a block.
#include "support/codecs.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "compression/registry.hpp"
#include "kolo/compression.hpp"
#include "kolo/error.hpp"

namespace kolo::compression::codecs_test {

using Values = std::vector<float>;
using Payload = std::vector<std::byte>;

constexpr std::byte kUntouched{0xA5};

/// Encodes to an odd address.
Payload encode(const Codec& codec, const Values& values, int terms = 1) {
  const std::size_t bytes = codec.payload_bytes(values.size(), terms);
  Payload memory(bytes + 9, kUntouched);
  codec.encode(values, terms, memory.data() + 1);
  EXPECT_EQ(memory.front(), kUntouched) << "written before the payload";
  EXPECT_EQ(
      std::count(memory.begin() + 1 + static_cast<std::ptrdiff_t>(bytes), memory.end(), kUntouched),
      8)
      << "written behind the payload";
  return {memory.begin() + 1, memory.begin() + 1 + static_cast<std::ptrdiff_t>(bytes)};
}

Values decode(const Codec& codec, const Payload& payload, std::size_t count, int terms = 1,
              float before = 0.0f) {
  Payload shifted(payload.size() + 1);
  std::ranges::copy(payload, shifted.begin() + 1);
  Values values(count, before);
  codec.add_decoded(shifted.data() + 1, terms, values);
  return values;
}

Values round_trip(const Codec& codec, const Values& values, int terms = 1) {
  return decode(codec, encode(codec, values, terms), values.size(), terms);
}

Values random_values(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Values values(count);
  for (float& value : values) value = normal(random);
  return values;
}

class CodecTest : public testing::TestWithParam<Compression> {
 protected:
  const Codec& codec() const { return *registry_.find_codec(GetParam().name()); }
  std::vector<std::size_t> lengths() const {
    return {1, 2, 7, 8, 9, 255, codec().block() - 1, codec().block()};
  }

 private:
  Registry registry_;
};

INSTANTIATE_TEST_SUITE_P(BuiltIn, CodecTest, testing::ValuesIn(test::all_codecs({"0.01", "0.4"})),
                         [](const auto& tested) {
                           std::string name(tested.param.name());
                           std::ranges::replace_if(
                               name, [](char c) { return c == ':' || c == '.'; }, '_');
                           return name;
                         });

TEST_P(CodecTest, ErrorStaysInItsBound) {
  const double bound = codec().error_bound();
  for (const std::size_t count : lengths()) {
    for (const float scale : {1e-20f, 1.0f, 1e30f}) {
      for (const int terms : {1, 3}) {
        Values values = random_values(count, static_cast<unsigned>(count));
        for (float& value : values) value *= scale;
        float largest = 0;
        for (const float value : values) largest = std::max(largest, std::fabs(value));
        const Values result = round_trip(codec(), values, terms);
        for (std::size_t i = 0; i < count; ++i) {
          ASSERT_LE(std::fabs(result[i] - values[i]), bound * largest)
              << "element " << i << " of " << count;
        }
      }
    }
  }
}

TEST_P(CodecTest, PayloadsAreSmaller_AndEqualForEqualValues) {
  const std::size_t block = codec().block();
  const Values values = random_values(block, 5);
  EXPECT_EQ(encode(codec(), values), encode(codec(), values));
  EXPECT_LE(codec().payload_bytes(block, 1), block * sizeof(float));
  EXPECT_LE(codec().payload_bytes(block, 1), codec().payload_bytes(block, 2));
  for (const int terms : {2, 100}) {
    EXPECT_LE(codec().payload_bytes(block, terms), block * sizeof(float));
  }
}

TEST_P(CodecTest, DecodedElementsAreAdded) {
  const Values values = random_values(100, 6);
  const Payload payload = encode(codec(), values);
  const Values alone = decode(codec(), payload, 100);
  const Values added = decode(codec(), payload, 100, 1, 8.0f);
  for (std::size_t i = 0; i < 100; ++i) EXPECT_FLOAT_EQ(added[i], 8.0f + alone[i]);
}

TEST_P(CodecTest, ZerosStayZeros) {
  for (const int terms : {1, 2}) {
    EXPECT_EQ(round_trip(codec(), Values(codec().block(), 0.0f), terms),
              Values(codec().block(), 0.0f));
  }
}

TEST_P(CodecTest, WhatIsNotFinite_IsSeen) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    for (const std::size_t count : lengths()) {
      for (const std::size_t place : {std::size_t{0}, count / 2, count - 1}) {
        Values values = random_values(count, 7);
        values[place] = bad;
        const Values result = round_trip(codec(), values);
        EXPECT_FALSE(std::ranges::all_of(result, [](float x) { return std::isfinite(x); }))
            << bad << " at " << place << " of " << count;
      }
    }
  }
}

TEST(Int8Test, ElementsAreRoundedToTheNearestUnit) {
  Values values(256);
  for (std::size_t i = 0; i < 255; ++i) values[i] = (static_cast<float>(i) - 127.0f) * 0.5f;
  values[255] = 0.2f;  // less than half a unit of 0.5
  Values expected = values;
  expected[255] = 0.0f;
  EXPECT_EQ(round_trip(int8(), values), expected);
  EXPECT_EQ(int8().payload_bytes(256, 1), 260);
  EXPECT_EQ(int8().payload_bytes(7, 4), 11);
}

TEST(Int8Test, LargestMagnitudeIsFoundAtAnyPlace) {
  for (std::size_t count : {1u, 5u, 17u, 256u}) {
    for (std::size_t place = 0; place < count; ++place) {
      Values values(count, 1.0f);
      values[place] = -127.0f;
      EXPECT_EQ(round_trip(int8(), values), values) << place << " of " << count;
    }
  }
}

TEST(OneBitTest, SidesHaveTheirMeans) {
  const Values values{1, -2, 3, -6, 0, -1, 8, 4, -3};
  const Values expected{3.2f, -3, 3.2f, -3, 3.2f, -3, 3.2f, 3.2f, -3};
  const Values result = round_trip(one_bit(), values);
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_FLOAT_EQ(result[i], expected[i]);
  EXPECT_EQ(one_bit().payload_bytes(256, 1), 8 + 32);
  EXPECT_EQ(one_bit().payload_bytes(9, 1), 8 + 2);
}

TEST(TopKTest, LargestMagnitudesAreKept_TheFirstAmongEquals) {
  const auto codec = top_k("top_k:0.3", 0.3);
  const Values values{1, -7, 2, 5, -5, 0, 5, 1, -1, 0.5f};
  EXPECT_EQ(round_trip(*codec, values), (Values{0, -7, 0, 5, -5, 0, 0, 0, 0, 0}));
  EXPECT_EQ(codec->payload_bytes(10, 1), 3 * 6);
  EXPECT_EQ(codec->payload_bytes(10, 2), 6 * 6);
  EXPECT_EQ(codec->payload_bytes(10, 3), 10 * 4);  // uncompressed
  EXPECT_EQ(round_trip(*codec, values, 3), values);
}

TEST(TopKTest, SumOfSparseBlocks_LosesNothing) {
  const auto codec = top_k("top_k:0.01", 0.01);
  const std::size_t count = codec->block();
  Values sum(count);
  for (unsigned term = 0; term < 3; ++term) {
    codec->add_decoded(encode(*codec, random_values(count, term)).data(), 1, sum);
  }
  EXPECT_EQ(round_trip(*codec, sum, 3), sum);
}

TEST(TopKTest, SelectionEqualsThatOfASort) {
  const auto codec = top_k("top_k:0.05", 0.05);
  Values values = random_values(codec->block(), 9);
  Values magnitudes;
  for (const float value : values) magnitudes.push_back(std::fabs(value));
  std::ranges::sort(magnitudes, std::greater{});
  const float least = magnitudes[static_cast<std::size_t>(std::ceil(0.05 * 16384)) - 1];
  for (float& value : values) value = std::fabs(value) >= least ? value : 0.0f;
  EXPECT_EQ(round_trip(*codec, random_values(codec->block(), 9)), values);
}

TEST(RandomKTest, OneElementOfEachRunIsKept_AnotherOneForOtherValues) {
  const auto codec = random_k("random_k:0.25", 0.25);
  std::vector<std::size_t> kept(4, 0);
  for (unsigned seed = 0; seed < 400; ++seed) {
    const Values values = random_values(4000, seed);
    const Values result = round_trip(*codec, values);
    for (std::size_t run = 0; run < 1000; ++run) {
      std::size_t count = 0;
      for (std::size_t i = 4 * run; i < 4 * run + 4; ++i) {
        if (result[i] == 0.0f) continue;
        EXPECT_EQ(result[i], values[i]);
        ++count;
        ++kept[i % 4];
      }
      ASSERT_EQ(count, 1) << "run " << run;
    }
  }
  // 100,000 each are expected, with a standard deviation of 274.
  for (const std::size_t count : kept) EXPECT_NEAR(static_cast<double>(count), 100000, 2000);
  EXPECT_EQ(codec->payload_bytes(4000, 1), 8 + 4 * 1000);
  EXPECT_EQ(codec->payload_bytes(4000, 2), 2 * 6 * 1000);
  EXPECT_EQ(codec->payload_bytes(4000, 3), 4 * 4000);  // uncompressed
}

TEST(CodecRegistryTest, CodecsAreFoundByTheNamesOfTheOptions) {
  const Registry registry;
  for (const Compression& compression :
       {Compression::int8(), Compression::one_bit(), Compression::top_k(), Compression::top_k(1.0),
        Compression::random_k(1.0 / 3.0)}) {
    const Codec* const codec = registry.find_codec(compression.name());
    ASSERT_NE(codec, nullptr);
    EXPECT_EQ(codec->name(), compression.name());
    EXPECT_EQ(registry.find_codec(compression.name()), codec) << "made twice";
    EXPECT_EQ(registry.find(compression.name()).name(), "none");
  }
  EXPECT_EQ(Compression::top_k(0.25).name(), "top_k:0.25");
  EXPECT_EQ(registry.find_codec("fp16"), nullptr);
  EXPECT_EQ(registry.find_codec("none"), nullptr);
}

TEST(CodecRegistryTest, MalformedFractionsAreErrors) {
  const Registry registry;
  for (const char* name : {"top_k", "top_k:", "top_k:0", "top_k:1.5", "top_k:-1", "top_k:nan",
                           "top_k:0.1x", "random_k:inf", "topk:0.1", "int8:1", ""}) {
    EXPECT_THROW(registry.find_codec(name), InvalidArgument) << name;
    EXPECT_THROW(registry.find(name), InvalidArgument) << name;
  }
}

class NamedCodec final : public Codec {
 public:
  explicit NamedCodec(std::string name) : name_(std::move(name)) {}
  std::string_view name() const override { return name_; }
  std::size_t block() const override { return 1; }
  double error_bound() const override { return 0; }
  std::size_t payload_bytes(std::size_t, int) const override { return 0; }
  void encode(std::span<const float>, int, std::byte*) const override {}
  void add_decoded(const std::byte*, int, std::span<float>) const override {}

 private:
  std::string name_;
};

TEST(CodecRegistryTest, NamesOfCodecsAreTheirOwn) {
  Registry registry;
  const NamedCodec own("mine");
  registry.add(own);
  EXPECT_EQ(registry.find_codec("mine"), &own);
  for (const char* name : {"mine", "int8", "fp16", "top_k", "random_k", "a:b", ""}) {
    EXPECT_THROW(registry.add(NamedCodec(name)), InvalidArgument) << name;
  }
}

}  // namespace kolo::compression::codecs_test

#include "base/convert.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "contract/reference.hpp"
#include "kolo/error.hpp"
#include "support/simd_targets.hpp"

namespace kolo::base::convert_test {

using test::HalfFormat;
using test::SimdTargetGuard;
using Buffer = std::vector<std::byte>;
constexpr DType kFloatingTypes[] = {DType::Float16, DType::BFloat16, DType::Float32,
                                    DType::Float64};
constexpr DType kIntegerTypes[] = {DType::UInt8, DType::Int8, DType::Int16, DType::Int32,
                                   DType::Int64};

const HalfFormat& format_of(DType dtype) {
  return dtype == DType::Float16 ? test::kFloat16Format : test::kBFloat16Format;
}

class ConvertTest : public testing::TestWithParam<std::int64_t> {
 protected:
  SimdTargetGuard guard_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Targets, ConvertTest, testing::ValuesIn(test::supported_simd_targets()),
                         [](const auto& target) { return hwy::TargetName(target.param); });

/// Converts `floats` and compares with the definition of the format.
void expect_rounded(DType to, const std::vector<float>& floats) {
  std::vector<std::uint16_t> halves(floats.size());
  convert(DType::Float32, floats.data(), to, halves.data(), floats.size());
  for (std::size_t i = 0; i < floats.size(); ++i) {
    if (std::isnan(floats[i])) {
      ASSERT_TRUE(std::isnan(format_of(to).decode(halves[i])))
          << std::hex << std::bit_cast<std::uint32_t>(floats[i]) << " became " << halves[i];
    } else {
      ASSERT_EQ(halves[i], format_of(to).encode(floats[i])) << std::hexfloat << floats[i];
    }
  }
}

TEST_P(ConvertTest, FloatsOfAllMagnitudes_RoundToNearestEven) {
  constexpr std::uint64_t kStride = 4093;  // odd, so that low bits vary
  std::vector<float> floats;
  for (std::uint64_t bits = 0; bits <= 0xFFFFFFFF; bits += kStride) {
    floats.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  }
  for (const DType to : {DType::Float16, DType::BFloat16}) expect_rounded(to, floats);
}

TEST_P(ConvertTest, FloatsAtAndBesideTies_RoundToNearestEven) {
  for (const DType to : {DType::Float16, DType::BFloat16}) {
    const HalfFormat& format = format_of(to);
    std::vector<float> floats;
    for (std::uint32_t bits = 0; bits < 65536; ++bits) {
      const double here = format.decode(static_cast<std::uint16_t>(bits));
      const double next = format.decode(static_cast<std::uint16_t>(bits + 1));
      const auto middle = static_cast<float>(here + (next - here) / 2);
      constexpr float kInfinity = std::numeric_limits<float>::infinity();
      for (const float value : {static_cast<float>(here), middle, std::nextafter(middle, kInfinity),
                                std::nextafter(middle, -kInfinity)}) {
        floats.push_back(value);
      }
    }
    const float largest = std::numeric_limits<float>::max();
    floats.insert(floats.end(), {largest, -largest, 65504.0f, 65519.996f, 65520.0f, 0x1.ffp127f});
    expect_rounded(to, floats);
  }
}

TEST_P(ConvertTest, EveryHalf_IsExactInWiderTypes) {
  std::vector<std::uint16_t> halves(65536);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  for (const DType from : {DType::Float16, DType::BFloat16}) {
    std::vector<float> floats(halves.size());
    std::vector<double> doubles(halves.size());
    std::vector<std::uint16_t> back(halves.size());
    convert(from, halves.data(), DType::Float32, floats.data(), halves.size());
    convert(from, halves.data(), DType::Float64, doubles.data(), halves.size());
    convert(DType::Float32, floats.data(), from, back.data(), halves.size());
    for (std::size_t i = 0; i < halves.size(); ++i) {
      const double expected = format_of(from).decode(halves[i]);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(floats[i]) && std::isnan(doubles[i])) << i;
        ASSERT_TRUE(std::isnan(format_of(from).decode(back[i]))) << i;
      } else {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(floats[i]),
                  std::bit_cast<std::uint32_t>(static_cast<float>(expected)));
        ASSERT_EQ(doubles[i], expected);
        ASSERT_EQ(back[i], halves[i]);
      }
    }
  }
}

TEST_P(ConvertTest, EveryPairAndCount_ScalesAndStaysInBounds) {
  for (const DType from : kFloatingTypes) {
    for (const DType to : kFloatingTypes) {
      for (std::size_t count = 0; count <= 1100; count += count < 70 ? 1 : 103) {
        Buffer in(count * size_of(from));
        Buffer out((count + 8) * size_of(to), std::byte{0xA5});
        Buffer expected = out;
        for (std::size_t i = 0; i < count; ++i) {
          const double value = (static_cast<double>(i % 37) - 18) / 8;
          test::set_value(from, in.data(), i, value);
          test::set_value(to, expected.data(), i, value * 0.375);
        }
        convert(from, in.data(), to, out.data(), count, 0.375);
        ASSERT_EQ(out, expected) << name_of(from) << " to " << name_of(to) << ", " << count;
      }
    }
  }
}

TEST_P(ConvertTest, DoublesAreScaledAsDoubles) {
  std::vector<double> values(53);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = (static_cast<double>(i) + 1) / 7;
  values.back() = 0x1.123456789p200;  // not exact in float
  std::vector<double> scaled(values.size());
  convert(DType::Float64, values.data(), DType::Float64, scaled.data(), values.size(), 1.0 / 3);
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(scaled[i], values[i] * (1.0 / 3)) << i;
}

TEST_P(ConvertTest, InPlaceAmongTypesOfOneSize) {
  std::vector<std::uint16_t> halves(53);
  for (std::size_t i = 0; i < halves.size(); ++i) {
    halves[i] = test::kFloat16Format.encode(static_cast<double>(i) / 4);
  }
  convert(DType::Float16, halves.data(), DType::BFloat16, halves.data(), halves.size());
  for (std::size_t i = 0; i < halves.size(); ++i) {
    EXPECT_EQ(test::kBFloat16Format.decode(halves[i]), static_cast<double>(i) / 4);
  }
}

TEST(ConvertIntegersTest, WidensNarrowsAndScalesTowardZero) {
  for (const DType dtype : kIntegerTypes) {
    constexpr std::size_t kCount = 21;
    Buffer narrow(kCount * size_of(dtype));
    const double first = dtype == DType::UInt8 ? 0 : -10;
    for (std::size_t i = 0; i < kCount; ++i) {
      test::set_value(dtype, narrow.data(), i, first + static_cast<double>(i));
    }
    std::vector<std::int64_t> wide(kCount);
    convert(dtype, narrow.data(), DType::Int64, wide.data(), kCount);
    Buffer back(narrow.size());
    convert(DType::Int64, wide.data(), dtype, back.data(), kCount);
    EXPECT_EQ(back, narrow) << name_of(dtype);
    std::vector<std::int64_t> scaled(kCount);
    convert(dtype, narrow.data(), DType::Int64, scaled.data(), kCount, 100.75);
    for (std::size_t i = 0; i < kCount; ++i) {
      const double value = first + static_cast<double>(i);
      EXPECT_EQ(wide[i], static_cast<std::int64_t>(value)) << name_of(dtype);
      EXPECT_EQ(scaled[i], static_cast<std::int64_t>(std::trunc(value * 100.75)));
    }
  }
}

TEST(ConvertIntegersTest, ExtremesAreExactAndSaturate) {
  constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  const std::vector<std::int64_t> values{kMin, kMin + 1, kMax, kMax - 1};
  std::vector<std::int64_t> out(values.size());
  convert(DType::Int64, values.data(), DType::Int64, out.data(), values.size());
  EXPECT_EQ(out, values);
  convert(DType::Int64, values.data(), DType::Int64, out.data(), values.size(), 2.0);
  EXPECT_EQ(out, (std::vector<std::int64_t>{kMin, kMin, kMax, kMax}));
  convert(DType::Int64, values.data(), DType::Int64, out.data(), values.size(), std::nan(""));
  EXPECT_EQ(out, (std::vector<std::int64_t>{0, 0, 0, 0}));
}

TEST(ConvertErrorTest, OtherPairs_Throw) {
  std::int64_t value = 0;
  EXPECT_THROW(convert(DType::Float32, &value, DType::Int64, &value, 1), InvalidArgument);
  EXPECT_THROW(convert(DType::Bool, &value, DType::Float32, &value, 1), InvalidArgument);
  EXPECT_THROW(convert(DType::Int8, &value, DType::Int16, &value, 1), InvalidArgument);
}

}  // namespace kolo::base::convert_test

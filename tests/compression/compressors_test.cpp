#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "compression/registry.hpp"
#include "contract/reference.hpp"
#include "kolo/compression.hpp"
#include "kolo/error.hpp"

namespace kolo::compression::compressors_test {

using Buffer = std::vector<std::byte>;

Buffer round_trip(const Compressor& compressor, DType dtype, const Buffer& tensor) {
  const std::size_t count = tensor.size() / size_of(dtype);
  Buffer payload(compressor.payload_bytes(dtype, count));
  Buffer result(tensor.size());
  compressor.compress(dtype, tensor.data(), count, payload.data());
  compressor.decompress(dtype, payload.data(), count, result.data());
  return result;
}

class CompressorTest : public testing::TestWithParam<const Compressor*> {
 protected:
  const Compressor& compressor() const { return *GetParam(); }
};

INSTANTIATE_TEST_SUITE_P(BuiltIn, CompressorTest, testing::ValuesIn(Registry().compressors()),
                         [](const auto& tested) { return std::string(tested.param->name()); });

TEST_P(CompressorTest, TypesItDoesNotShorten_TravelUntouched) {
  for (const DType dtype : test::kAllDTypes) {
    if (compressor().wire_dtype(dtype) != dtype) continue;
    for (const std::size_t count : {0u, 1u, 77u}) {
      Buffer tensor(count * size_of(dtype));
      for (std::size_t i = 0; i < tensor.size(); ++i) tensor[i] = static_cast<std::byte>(i * 37);
      EXPECT_EQ(compressor().payload_bytes(dtype, count), tensor.size());
      EXPECT_EQ(round_trip(compressor(), dtype, tensor), tensor) << name_of(dtype);
    }
  }
}

TEST_P(CompressorTest, IntegersHalvesAndComplexNumbers_AreNeverChanged) {
  for (const DType dtype : test::kAllDTypes) {
    if (dtype == DType::Float32 || dtype == DType::Float64) continue;
    EXPECT_EQ(compressor().wire_dtype(dtype), dtype);
  }
}

TEST_P(CompressorTest, ErrorStaysInItsBound) {
  const double relative = &compressor() == &fp16()   ? 0x1p-11
                          : &compressor() == &bf16() ? 0x1p-8
                                                     : 0;
  const double absolute = &compressor() == &fp16() ? 0x1p-25 : 0;
  for (const DType dtype : {DType::Float32, DType::Float64}) {
    Buffer tensor;
    for (int power = -30; power < 15; ++power) {
      for (int i = 0; i < 40; ++i) {
        Buffer element(size_of(dtype));
        test::set_value(dtype, element.data(), 0,
                        std::ldexp((i % 2 == 0 ? 1 : -1) * (1 + i / 40.0), power));
        tensor.insert(tensor.end(), element.begin(), element.end());
      }
    }
    const Buffer result = round_trip(compressor(), dtype, tensor);
    for (std::size_t i = 0; i < tensor.size() / size_of(dtype); ++i) {
      const double value = test::value_at(dtype, tensor.data(), i);
      EXPECT_NEAR(test::value_at(dtype, result.data(), i), value,
                  std::fabs(value) * relative + absolute);
    }
  }
}

TEST_P(CompressorTest, NotANumberAndInfinity_Stay) {
  for (const DType dtype : {DType::Float32, DType::Float64}) {
    Buffer tensor(3 * size_of(dtype));
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    test::set_value(dtype, tensor.data(), 0, std::nan(""));
    test::set_value(dtype, tensor.data(), 1, kInfinity);
    test::set_value(dtype, tensor.data(), 2, -kInfinity);
    const Buffer result = round_trip(compressor(), dtype, tensor);
    EXPECT_TRUE(std::isnan(test::value_at(dtype, result.data(), 0)));
    EXPECT_EQ(test::value_at(dtype, result.data(), 1), kInfinity);
    EXPECT_EQ(test::value_at(dtype, result.data(), 2), -kInfinity);
  }
}

TEST(CompressorSizeTest, CastsHalveOrQuarterTheBytes) {
  for (const Compressor* compressor : {&fp16(), &bf16()}) {
    EXPECT_EQ(compressor->payload_bytes(DType::Float32, 1001), 2002);
    EXPECT_EQ(compressor->payload_bytes(DType::Float64, 1001), 2002);
  }
  EXPECT_EQ(none().payload_bytes(DType::Float32, 1001), 4004);
}

TEST(CompressorRangeTest, TooLargeForHalf_BecomesInfinity) {
  float value = 70000;
  float result = 0;
  std::uint16_t payload = 0;
  fp16().compress(DType::Float32, &value, 1, &payload);
  fp16().decompress(DType::Float32, &payload, 1, &result);
  EXPECT_EQ(result, std::numeric_limits<float>::infinity());
  bf16().compress(DType::Float32, &value, 1, &payload);
  bf16().decompress(DType::Float32, &payload, 1, &result);
  EXPECT_NEAR(result, value, value / 256);
}

TEST(CompressionRegistryTest, NamesOfTheOptions_AreFound) {
  const Registry registry;
  EXPECT_EQ(&registry.find(Compression().name()), &none());
  EXPECT_EQ(&registry.find(Compression::none().name()), &none());
  EXPECT_EQ(&registry.find(Compression::fp16().name()), &fp16());
  EXPECT_EQ(&registry.find(Compression::bf16().name()), &bf16());
}

TEST(CompressionRegistryTest, UnknownNames_AreErrors) {
  const Registry registry;
  try {
    registry.find("int7");
    FAIL() << "no exception";
  } catch (const InvalidArgument& error) {
    const std::string text = error.what();
    for (const char* name : {"int7", "none", "fp16", "bf16", "one_bit", "top_k:FRACTION"}) {
      EXPECT_NE(text.find(name), std::string::npos) << text;
    }
  }
}

}  // namespace kolo::compression::compressors_test

#include <cstdint>
#include <cstring>

#include <gtest/gtest.h>

#include "comm/gpu/gpu.hpp"

namespace kolo::comm::scalar_test {

template <class T>
T value_of(DType dtype, double value) {
  T scalar{};
  std::memcpy(&scalar, scalar_of(dtype, value).data(), sizeof(T));
  return scalar;
}

TEST(ScalarTest, IsOneElementOfItsType) {
  EXPECT_EQ(value_of<float>(DType::Float32, 1.0 / 3), 1.0F / 3);
  EXPECT_EQ(value_of<double>(DType::Float64, 1.0 / 3), 1.0 / 3);
  EXPECT_EQ(value_of<std::uint16_t>(DType::Float16, 0.5), 0x3800);
  EXPECT_EQ(value_of<std::uint16_t>(DType::Float16, 1.0 / 3), 0x3555);
  EXPECT_EQ(value_of<std::uint16_t>(DType::BFloat16, 1.0 / 3), 0x3EAB);
  EXPECT_EQ(value_of<std::int8_t>(DType::Int8, -7.9), -7);
  EXPECT_EQ(value_of<std::uint8_t>(DType::UInt8, 255), 255);
  EXPECT_EQ(value_of<std::int16_t>(DType::Int16, -30'000), -30'000);
  EXPECT_EQ(value_of<std::int32_t>(DType::Int32, 1 << 30), 1 << 30);
  EXPECT_EQ(value_of<std::int64_t>(DType::Int64, 1e300), INT64_MAX);
  EXPECT_EQ(value_of<std::uint8_t>(DType::Bool, 0.5), 1);
  EXPECT_EQ(value_of<std::uint8_t>(DType::Bool, 0), 0);
}

}  // namespace kolo::comm::scalar_test

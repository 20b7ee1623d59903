#include "ops/kernels/kernels.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "contract/reference.hpp"
#include "kolo/error.hpp"
#include "support/simd_targets.hpp"

namespace kolo::ops::kernels_test {

using test::SimdTargetGuard;
using Buffer = std::vector<std::byte>;
constexpr std::byte kCanary{0xA5};

/// Combines `inputs`, each `offset` elements into its memory, and checks that nothing but the
/// outputs was written.
Buffer combine_at(DType dtype, const Reduction& reduction, const std::vector<Buffer>& inputs,
                  std::size_t offset) {
  const std::size_t shift = offset * size_of(dtype);
  std::vector<Buffer> shifted;
  std::vector<const std::byte*> pointers;
  for (const Buffer& input : inputs) {
    shifted.emplace_back(shift);
    shifted.back().insert(shifted.back().end(), input.begin(), input.end());
  }
  for (const Buffer& input : shifted) pointers.push_back(input.data() + shift);
  const std::size_t bytes = inputs[0].size();
  Buffer output(shift + bytes + 64, kCanary);
  const std::array<std::byte*, 1> outputs{output.data() + shift};
  combine(dtype, reduction, pointers, outputs, bytes / size_of(dtype));
  for (std::size_t i = 0; i < output.size(); ++i) {
    const bool is_outside = i < shift || i >= shift + bytes;
    EXPECT_TRUE(!is_outside || output[i] == kCanary) << "byte " << i;
  }
  return {output.begin() + static_cast<std::ptrdiff_t>(shift),
          output.begin() + static_cast<std::ptrdiff_t>(shift + bytes)};
}

/// Element i of input k: small enough for every type, different for each i and k.
Buffer make_input(DType dtype, std::size_t k, std::size_t count) {
  Buffer input(count * size_of(dtype));
  for (std::size_t i = 0; i < count; ++i) {
    double value = static_cast<double>((i * 7 + k * 13) % 23) + 1;
    if (dtype == DType::Bool) value = (i + k) % 3 == 0 ? 1 : 0;
    if (is_floating(dtype) || is_complex(dtype)) value = (value - 12) / 3;
    if (dtype == DType::Int8 || size_of(dtype) >= 4) value -= 12;
    test::set_value(dtype, input.data(), i, value);
  }
  return input;
}

void expect_reference(DType dtype, const Reduction& reduction, const std::vector<Buffer>& inputs,
                      std::size_t offset = 0) {
  const Buffer expected = test::reference_combine(dtype, reduction, inputs);
  const Buffer actual = combine_at(dtype, reduction, inputs, offset);
  const std::size_t count = expected.size() / size_of(dtype);
  const std::size_t i = test::first_difference(dtype, expected.data(), actual.data(), count);
  ASSERT_EQ(i, count) << "element " << i << " of " << count << " from " << inputs.size()
                      << " inputs, offset " << offset << ": expected "
                      << test::value_at(dtype, expected.data(), i) << ", got "
                      << test::value_at(dtype, actual.data(), i);
}

using KernelCase = std::tuple<std::int64_t, DType, ReduceOp>;

class CombineTest : public testing::TestWithParam<KernelCase> {
 protected:
  SimdTargetGuard guard_{std::get<0>(GetParam())};
  DType dtype_ = std::get<1>(GetParam());
  ReduceOp op_ = std::get<2>(GetParam());
};

bool is_any(DType) { return true; }

std::vector<KernelCase> kernels_of(bool (*is_wanted)(DType)) {
  std::vector<KernelCase> cases;
  for (const std::int64_t target : test::supported_simd_targets()) {
    for (const DType dtype : test::kAllDTypes) {
      for (const ReduceOp op : test::kAllOps) {
        if (is_wanted(dtype) && test::is_defined(dtype, op)) cases.emplace_back(target, dtype, op);
      }
    }
  }
  return cases;
}

std::string name_case(const testing::TestParamInfo<KernelCase>& info) {
  const auto& [target, dtype, op] = info.param;
  return std::string(hwy::TargetName(target)) + "_" + std::string(name_of(dtype)) + "_" +
         std::string(name_of(op));
}

using CombineHalfTest = CombineTest;

INSTANTIATE_TEST_SUITE_P(Kernels, CombineTest, testing::ValuesIn(kernels_of(is_any)), name_case);
INSTANTIATE_TEST_SUITE_P(Kernels, CombineHalfTest, testing::ValuesIn(kernels_of(is_half)),
                         name_case);

TEST_P(CombineTest, EveryCount_EqualsReference) {
  for (std::size_t count = 0; count <= 300; count += count < 70 ? 1 : 23) {
    for (const std::size_t inputs : {1u, 2u, 3u, 7u}) {
      std::vector<Buffer> buffers;
      for (std::size_t k = 0; k < inputs; ++k) buffers.push_back(make_input(dtype_, k, count));
      expect_reference(dtype_, {op_}, buffers, count % 5);
    }
  }
}

TEST_P(CombineTest, Scales_EqualReference) {
  const std::pair<double, double> scales[] = {{0.5, 1.0}, {1.0, 1.0 / 3}, {-1.5, 0.3}, {1e3, 1e-3}};
  for (const auto& [prescale, postscale] : scales) {
    for (const std::size_t inputs : {1u, 2u, 5u}) {
      std::vector<Buffer> buffers;
      for (std::size_t k = 0; k < inputs; ++k) buffers.push_back(make_input(dtype_, k, 147));
      expect_reference(dtype_, {op_, prescale, postscale}, buffers, 1);
    }
  }
}

TEST_P(CombineTest, SeveralOutputs_AllOfWhichAreInputs) {
  const std::size_t count = 131;
  std::vector<Buffer> inputs;
  for (std::size_t k = 0; k < 3; ++k) inputs.push_back(make_input(dtype_, k, count));
  const Buffer expected = test::reference_combine(dtype_, {op_}, inputs);
  const std::vector<std::byte*> pointers{inputs[0].data(), inputs[1].data(), inputs[2].data()};
  const std::vector<const std::byte*> sources(pointers.begin(), pointers.end());
  combine(dtype_, {op_}, sources, pointers, count);
  for (const Buffer& output : inputs) EXPECT_EQ(output, expected);
}

TEST_P(CombineTest, Identity_ChangesNothing) {
  const Buffer input = make_input(dtype_, 1, 40);
  Buffer identity(input.size());
  fill_identity(dtype_, {op_}, identity.data(), 40);
  EXPECT_EQ(combine_at(dtype_, {op_}, {identity, input}, 0), input);
}

TEST_P(CombineTest, SpecialValues_EqualReference) {
  std::vector<double> values{0, 1};
  if (is_floating(dtype_) || is_complex(dtype_)) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const double smallest = dtype_ == DType::Float16 ? 0x1p-24 : 0x1p-133;
    const double largest = dtype_ == DType::Float16 ? 65504 : 0x1.fep127;
    values = {0.0,      -0.0,      1.0,
              -1.0,     kInfinity, -kInfinity,
              smallest, -smallest, 0.75 * largest,
              -largest, largest,   std::numeric_limits<double>::quiet_NaN()};
  } else if (dtype_ != DType::Bool) {
    // The type's extremes; their products and sums wrap around.
    const int bits = static_cast<int>(8 * size_of(dtype_));
    const bool is_signed = dtype_ != DType::UInt8;
    values = {0, 1, 3, is_signed ? -std::ldexp(1, bits - 1) : 255,
              is_signed ? std::ldexp(1, bits - 1) - std::max(1.0, std::ldexp(1, bits - 54)) : 254};
  }
  Buffer first;
  Buffer second;
  for (const double a : values) {
    for (const double b : values) {
      Buffer element(size_of(dtype_));
      test::set_value(dtype_, element.data(), 0, a);
      first.insert(first.end(), element.begin(), element.end());
      test::set_value(dtype_, element.data(), 0, b);
      second.insert(second.end(), element.begin(), element.end());
    }
  }
  expect_reference(dtype_, {op_}, {first, second});
  expect_reference(dtype_, {op_}, {first, second, first, second});
  expect_reference(dtype_, {op_, 2.0, 1.0}, {first, second});
  expect_reference(dtype_, {op_, 1.0, 1e10}, {first, second});
}

/// Every 16-bit pattern, combined with one number: conversion in both directions.
TEST_P(CombineHalfTest, EveryHalf_EqualsReference) {
  Buffer all(65536 * 2);
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto pattern = static_cast<std::uint16_t>(bits);
    std::memcpy(&all[bits * 2], &pattern, 2);
  }
  Buffer other(all.size());
  for (std::size_t i = 0; i < 65536; ++i) {
    test::set_value(dtype_, other.data(), i, i % 2 == 0 ? 1.0078125 : -0x1p-15);
  }
  expect_reference(dtype_, {op_}, {all});
  expect_reference(dtype_, {op_}, {all, other});
}

TEST(CombineOverflowTest, SumsOverflowOnlyAtTheEnd) {
  for (const DType dtype : {DType::Float16, DType::BFloat16}) {
    Buffer large(2 * 33);
    Buffer negative(2 * 33);
    for (std::size_t i = 0; i < 33; ++i) {
      const double value = dtype == DType::Float16 ? 60000 : 0x1.8p127;
      test::set_value(dtype, large.data(), i, value);
      test::set_value(dtype, negative.data(), i, -value);
    }
    if (dtype == DType::Float16) {
      const Buffer sum = combine_at(dtype, {ReduceOp::Sum}, {large, large, negative}, 0);
      EXPECT_EQ(sum, large);
    }
    const Buffer infinite = combine_at(dtype, {ReduceOp::Sum}, {large, large}, 0);
    for (std::size_t i = 0; i < 33; ++i) {
      EXPECT_EQ(test::value_at(dtype, infinite.data(), i), std::numeric_limits<double>::infinity());
    }
  }
}

TEST(CombineErrorTest, UndefinedCombinations_Throw) {
  const Buffer input(8);
  Buffer output(8);
  const std::array<const std::byte*, 1> inputs{input.data()};
  const std::array<std::byte*, 1> outputs{output.data()};
  EXPECT_THROW(combine(DType::Bool, {ReduceOp::Sum}, inputs, outputs, 8), InvalidArgument);
  for (const ReduceOp op : {ReduceOp::Min, ReduceOp::Max}) {
    EXPECT_THROW(combine(DType::Complex64, {op}, inputs, outputs, 1), InvalidArgument);
  }
  EXPECT_THROW(combine(DType::Float32, {ReduceOp::Average}, inputs, outputs, 2), InvalidArgument);
  EXPECT_THROW(combine(DType::Float32, {ReduceOp::BitAnd}, inputs, outputs, 2), InvalidArgument);
  EXPECT_THROW(combine(DType::Float32, {}, {}, outputs, 2), InvalidArgument);
}

TEST(DivideTest, TruncatesTowardZeroExactly) {
  constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t divisor : {1, 2, 3, 7, 49, 98}) {
    std::vector<std::int64_t> values{
        0, 1, -1, 13 * divisor, -13 * divisor, divisor - 1, 1 - divisor, kLargest, -kLargest};
    const std::vector<std::int64_t> inputs = values;
    divide(values, divisor);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::int64_t rest = inputs[i] - values[i] * divisor;
      EXPECT_LT(std::abs(rest), divisor) << inputs[i] << " / " << divisor;
      EXPECT_GE(rest * (inputs[i] < 0 ? -1 : 1), 0) << inputs[i] << " / " << divisor;
    }
    EXPECT_EQ(values[3], 13);
    EXPECT_EQ(values[4], -13);
  }
}

}  // namespace kolo::ops::kernels_test

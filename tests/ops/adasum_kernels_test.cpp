// Adasum's kernels against dot products in long double.

#include "ops/kernels/adasum_kernels.hpp"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "contract/reduce_case.hpp"
#include "kolo/error.hpp"

namespace kolo::test::adasum_kernels_test {

constexpr DType kTypes[] = {DType::Float16, DType::BFloat16,  DType::Float32,
                            DType::Float64, DType::Complex64, DType::Complex128};

// With their exponents applied, the sums are the same wherever the vectors are cut.
TEST(AdasumKernelsTest, DotProducts_AreThoseOfWholeVectors) {
  for (const DType dtype : kTypes) {
    const long double square = is_complex(dtype) ? 5 : 1;  // of the parts 1 and -2, see set_value()
    for (const std::size_t count : {0u, 1u, 7u, 8u, 9u, 1023u, 1025u, 2500u}) {
      std::vector<std::byte> a(count * size_of(dtype));
      std::vector<std::byte> b(a.size());
      long double ab = 0;
      long double aa = 0;
      long double bb = 0;
      for (std::size_t i = 0; i < count; ++i) {
        set_value(dtype, a.data(), i, static_cast<double>(i % 31) - 15);
        set_value(dtype, b.data(), i, static_cast<double>(i % 7) / 4 + 1);
        const long double x = value_at(dtype, a.data(), i);
        const long double y = value_at(dtype, b.data(), i);
        ab += square * x * y;
        aa += square * x * x;
        bb += square * y * y;
      }
      for (const std::size_t cut : {std::size_t{0}, count / 3, count}) {
        const std::size_t offset = cut * size_of(dtype);
        const ops::DotProducts front = ops::dot_products(dtype, a.data(), b.data(), cut);
        const ops::DotProducts back =
            ops::dot_products(dtype, a.data() + offset, b.data() + offset, count - cut);
        const ops::DotProducts sum = ops::add(front, back);
        const auto a_exponent = static_cast<int>(sum.a_exponent);
        const auto b_exponent = static_cast<int>(sum.b_exponent);
        // All are sums of multiples of 1/16, which float64 holds exactly.
        EXPECT_EQ(std::ldexp(sum.ab, a_exponent + b_exponent), ab) << name_of(dtype);
        EXPECT_EQ(std::ldexp(sum.aa, 2 * a_exponent), aa) << name_of(dtype) << " " << count;
        EXPECT_EQ(std::ldexp(sum.bb, 2 * b_exponent), bb) << name_of(dtype) << " " << count;
      }
    }
  }
}

TEST(AdasumKernelsTest, OtherTypes_AreRefused) {
  std::byte memory[8]{};
  EXPECT_THROW(ops::dot_products(DType::Int32, memory, memory, 1), InvalidArgument);
  EXPECT_THROW(ops::add_weighted(DType::Bool, {1, 1}, memory, memory, memory, 1), InvalidArgument);
}

}  // namespace kolo::test::adasum_kernels_test

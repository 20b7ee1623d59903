#include "ops/kernels/adasum_kernels.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "base/convert.hpp"
#include "kolo/error.hpp"

namespace kolo::ops {
namespace {

// Sums are kept in as many parts as fill vector registers. A single sum would be accumulated in
// order, which is slower and less precise.
constexpr std::size_t kLanes = 8;
using Lanes = std::array<double, kLanes>;

double sum_of(const Lanes& lanes) {
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

template <class T>
DotProducts multiply(const T* a, const T* b, std::size_t count, DotProducts products) {
  const double a_scale = std::ldexp(1.0, -static_cast<int>(products.a_exponent));
  const double b_scale = std::ldexp(1.0, -static_cast<int>(products.b_exponent));
  Lanes ab{};
  Lanes aa{};
  Lanes bb{};
  const auto add_lane = [&](std::size_t lane, std::size_t i) {
    const double x = static_cast<double>(a[i]) * a_scale;
    const double y = static_cast<double>(b[i]) * b_scale;
    ab[lane] += x * y;
    aa[lane] += x * x;
    bb[lane] += y * y;
  };
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) add_lane(lane, i + lane);
  }
  for (std::size_t lane = 0; i < count; ++i, ++lane) add_lane(lane, i);
  products.ab = sum_of(ab);
  products.aa = sum_of(aa);
  products.bb = sum_of(bb);
  return products;
}

/// The power of two that scales the largest element to about 1. Infinity and NaN are left alone.
std::int64_t exponent_of(const double* values, std::size_t count) {
  double largest = 0;
  for (std::size_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(values[i]));
  if (!std::isfinite(largest)) return 0;
  const std::int64_t exponent = largest == 0 ? DotProducts::kMinExponent : std::ilogb(largest);
  return std::clamp(exponent, DotProducts::kMinExponent, -DotProducts::kMinExponent);
}

template <class T>
void add_elements(PairWeights weights, const T* a, const T* b, T* out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = static_cast<T>(weights.a * static_cast<double>(a[i]) +
                            weights.b * static_cast<double>(b[i]));
  }
}

template <class T>
const T* as(const std::byte* values) {
  return reinterpret_cast<const T*>(values);
}

// 16-bit floats are widened to float32, in pieces that stay in the first-level cache.
constexpr std::size_t kPiece = 1024;
using Floats = std::array<float, kPiece>;

void widen(DType dtype, const std::byte* values, std::size_t begin, std::size_t count,
           Floats& floats) {
  base::convert(dtype, values + begin * size_of(dtype), DType::Float32, floats.data(), count);
}

void check_type(DType dtype) {
  if (is_floating(dtype)) return;
  throw InvalidArgument("Adasum of " + std::string(name_of(dtype)) + " is not defined");
}

}  // namespace

DotProducts dot_products(DType dtype, const std::byte* a, const std::byte* b, std::size_t count) {
  if (is_complex(dtype)) return dot_products(real_type(dtype), a, b, 2 * count);
  check_type(dtype);
  if (dtype == DType::Float64) {
    const auto* x = as<double>(a);
    const auto* y = as<double>(b);
    return multiply(x, y, count,
                    {.a_exponent = exponent_of(x, count), .b_exponent = exponent_of(y, count)});
  }
  // Squares of the smaller types always fit float64.
  constexpr DotProducts kUnscaled{.a_exponent = 0, .b_exponent = 0};
  if (dtype == DType::Float32) return multiply(as<float>(a), as<float>(b), count, kUnscaled);
  DotProducts products;
  Floats x;
  Floats y;
  for (std::size_t begin = 0; begin < count; begin += kPiece) {
    const std::size_t length = std::min(kPiece, count - begin);
    widen(dtype, a, begin, length, x);
    widen(dtype, b, begin, length, y);
    products = add(products, multiply(x.data(), y.data(), length, kUnscaled));
  }
  return products;
}

DotProducts add(const DotProducts& one, const DotProducts& other) {
  DotProducts sum;
  sum.a_exponent = std::max(one.a_exponent, other.a_exponent);
  sum.b_exponent = std::max(one.b_exponent, other.b_exponent);
  const auto add_part = [&](const DotProducts& part) {
    const auto a_shift = static_cast<int>(part.a_exponent - sum.a_exponent);
    const auto b_shift = static_cast<int>(part.b_exponent - sum.b_exponent);
    sum.ab += std::ldexp(part.ab, a_shift + b_shift);
    sum.aa += std::ldexp(part.aa, 2 * a_shift);
    sum.bb += std::ldexp(part.bb, 2 * b_shift);
  };
  add_part(one);
  add_part(other);
  return sum;
}

PairWeights pair_weights(const DotProducts& products) {
  const auto shift = static_cast<int>(products.b_exponent - products.a_exponent);
  const auto weight = [&](double square, int exponent) {
    return square <= 0 ? 1.0 : 1.0 - std::ldexp(products.ab / (2 * square), exponent);
  };
  return {weight(products.aa, shift), weight(products.bb, -shift)};
}

void add_weighted(DType dtype, PairWeights weights, const std::byte* a, const std::byte* b,
                  std::byte* out, std::size_t count) {
  if (is_complex(dtype)) return add_weighted(real_type(dtype), weights, a, b, out, 2 * count);
  check_type(dtype);
  if (dtype == DType::Float64) {
    add_elements(weights, as<double>(a), as<double>(b), reinterpret_cast<double*>(out), count);
    return;
  }
  if (dtype == DType::Float32) {
    add_elements(weights, as<float>(a), as<float>(b), reinterpret_cast<float*>(out), count);
    return;
  }
  Floats x;
  Floats y;
  for (std::size_t begin = 0; begin < count; begin += kPiece) {
    const std::size_t length = std::min(kPiece, count - begin);
    widen(dtype, a, begin, length, x);
    widen(dtype, b, begin, length, y);
    add_elements(weights, x.data(), y.data(), x.data(), length);
    base::convert(DType::Float32, x.data(), dtype, out + begin * size_of(dtype), length);
  }
}

}  // namespace kolo::ops

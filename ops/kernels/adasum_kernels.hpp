#pragma once

#include <cstddef>
#include <cstdint>

#include "kolo/dtype.hpp"

namespace kolo::ops {

/// The dot products of two vectors a and b, or of a part of them. Both vectors are scaled by powers
/// of two, so that squares of float64 neither overflow nor underflow: the true a·b is
/// ab * 2^(a_exponent + b_exponent), |a|² is aa * 2^(2 a_exponent), and |b|² likewise. Ranks send
/// each other this struct's bytes.
struct DotProducts {
  static constexpr std::int64_t kMinExponent = -1000;  // 2^-1000 and 2^1000 are normal

  double ab = 0;
  double aa = 0;
  double bb = 0;
  std::int64_t a_exponent = kMinExponent;
  std::int64_t b_exponent = kMinExponent;
};

/// The dot products of `count` elements of a floating type, in float64; a complex element counts as
/// two real ones. Throws InvalidArgument for other types.
DotProducts dot_products(DType dtype, const std::byte* a, const std::byte* b, std::size_t count);

/// The dot products of two parts together. Commutative, bit for bit.
DotProducts add(const DotProducts& one, const DotProducts& other);

/// The factors by which Adasum multiplies two vectors before it adds them: 1 - a·b / 2|a|² and
/// 1 - a·b / 2|b|², or 1 for a vector without length.
struct PairWeights {
  double a;
  double b;
};
PairWeights pair_weights(const DotProducts& products);

/// out[i] = weights.a * a[i] + weights.b * b[i], in float64, rounded to the type. `out` may be one
/// of the inputs. Throws InvalidArgument for types that are neither floating nor complex.
void add_weighted(DType dtype, PairWeights weights, const std::byte* a, const std::byte* b,
                  std::byte* out, std::size_t count);

}  // namespace kolo::ops

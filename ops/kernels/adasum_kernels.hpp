#pragma once

#include <cstddef>
#include <cstdint>

#include "kolo/dtype.hpp"

namespace kolo::ops {

/// Adasum combines vectors a and b into (1 - a·b / 2|a|²) a + (1 - a·b / 2|b|²) b. This is the
/// fraction a·b / 2|a|², given a·b and |a|²: 0 for a zero vector, or if cancellation has made
/// the square negative.
constexpr double adasum_fraction(double product, double square) {
  return square <= 0 ? 0.0 : product / (2 * square);
}

/// The weights of vectors that Adasum combines in pairs, then in pairs of pairs. The result is a
/// weighted sum, and its weights follow from the vectors' dot products alone.
class AdasumWeights {
 public:
  /// `products` is a matrix of `vectors`² dot products; `weights` receives the result.
  constexpr AdasumWeights(const double* products, int vectors, double* weights)
      : products_(products), vectors_(vectors), weights_(weights) {}

  /// The order of ops/allreduce_adasum.cpp: neighbours are folded until a power of two is left,
  /// then combined at distance 1, 2, 4, …
  constexpr void compute() const {
    int cores = 1;
    while (2 * cores <= vectors_) cores *= 2;
    const int pairs = vectors_ - cores;
    const auto begin_of = [&](int core) { return core < pairs ? 2 * core : core + pairs; };
    for (int i = 0; i < vectors_; ++i) weights_[i] = 1.0;
    for (int pair = 0; pair < pairs; ++pair) merge(2 * pair, 2 * pair + 1, 2 * pair + 2);
    for (int distance = 1; distance < cores; distance *= 2) {
      for (int core = 0; core < cores; core += 2 * distance) {
        merge(begin_of(core), begin_of(core + distance), begin_of(core + 2 * distance));
      }
    }
  }

 private:
  /// The vectors from `begin` up to, but not including, `end`, already combined into one.
  struct Merged {
    int begin;
    int end;
  };

  constexpr void merge(int begin, int middle, int end) const {
    const Merged a{begin, middle};
    const Merged b{middle, end};
    const double ab = dot(a, b);
    scale(a, 1.0 - adasum_fraction(ab, dot(a, a)), b, 1.0 - adasum_fraction(ab, dot(b, b)));
  }

  constexpr double dot(Merged a, Merged b) const {
    double sum = 0;
    for (int i = a.begin; i < a.end; ++i) {
      for (int j = b.begin; j < b.end; ++j) {
        sum += weights_[i] * weights_[j] * products_[i * vectors_ + j];
      }
    }
    return sum;
  }

  constexpr void scale(Merged a, double a_weight, Merged b, double b_weight) const {
    for (int i = a.begin; i < a.end; ++i) weights_[i] *= a_weight;
    for (int i = b.begin; i < b.end; ++i) weights_[i] *= b_weight;
  }

  const double* products_;
  int vectors_;
  double* weights_;
};

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

/// The factors by which Adasum multiplies two vectors before it adds them; see adasum_fraction.
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

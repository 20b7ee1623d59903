#pragma once

namespace kolo::comm {

/// Adasum combines vectors a and b into (1 - a·b / 2|a|²) a + (1 - a·b / 2|b|²) b, those of two
/// ranks and then those of two pairs. What it makes of all ranks' vectors is thus a sum of them,
/// each with a weight that follows from the dot products of the vectors alone.
class AdasumWeights {
 public:
  /// `products` is a matrix of `vectors`² dot products; `weights` is what is made of it.
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
  /// Vectors from `begin` to before `end`, which are one by now.
  struct Merged {
    int begin;
    int end;
  };

  constexpr void merge(int begin, int middle, int end) const {
    const Merged a{begin, middle};
    const Merged b{middle, end};
    const double ab = dot(a, b);
    scale(a, weight(ab, dot(a, a)), b, weight(ab, dot(b, b)));
  }

  /// A vector of zeros stays what it is. What cancels may leave a square below zero.
  static constexpr double weight(double ab, double square) {
    return square <= 0 ? 1.0 : 1.0 - ab / (2 * square);
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

}  // namespace kolo::comm

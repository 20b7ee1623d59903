#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace kolo::simulator {

/// Random numbers that are the same on every machine for a given seed (SplitMix64).
class Random {
 public:
  /// Seeds are mixed: otherwise those of consecutive seeds would be the same, shifted by one.
  explicit Random(std::uint64_t seed) : state_(mix(seed)) {}

  std::uint64_t next() { return mix(state_ += 0x9e3779b97f4a7c15u); }
  /// From `low` to `high`, both included.
  int between(int low, int high) {
    return low + static_cast<int>(next() % static_cast<std::uint64_t>(high - low + 1));
  }
  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(bound));
  }
  /// True with probability 1 / `count`.
  bool one_in(int count) { return next() % static_cast<std::uint64_t>(count) == 0; }
  template <class T>
  const T& pick(const std::vector<T>& values) {
    return values[static_cast<std::size_t>(below(static_cast<std::int64_t>(values.size())))];
  }
  template <class T>
  void shuffle(std::vector<T>& values) {
    for (std::size_t i = values.size(); i > 1; --i) {
      std::swap(values[i - 1],
                values[static_cast<std::size_t>(below(static_cast<std::int64_t>(i)))]);
    }
  }

 private:
  static std::uint64_t mix(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  std::uint64_t state_;
};

}  // namespace kolo::simulator

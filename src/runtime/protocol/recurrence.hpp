#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kolo::runtime {

/// A sequence and its self-matches: for every distance d, the length of the longest suffix that
/// also occurs d places earlier.
class Recurrence {
 public:
  void append(std::uint32_t symbol) { symbols_.push_back(symbol); }

  std::size_t size() const { return symbols_.size(); }
  std::uint32_t operator[](std::size_t place) const { return symbols_[place]; }

  /// Computes all lengths for `length_at`, in linear time: the Z-algorithm (Gusfield, "Algorithms
  /// on strings, trees, and sequences", 1997) on the sequence read from its end.
  void measure() {
    const std::size_t count = symbols_.size();
    const auto symbol = [&](std::size_t i) { return symbols_[count - 1 - i]; };
    lengths_.assign(count, 0);
    std::size_t begin = 0;  // of the known match that reaches farthest
    std::size_t end = 0;
    for (std::size_t d = 1; d < count; ++d) {
      std::size_t length = d < end ? std::min<std::size_t>(end - d, lengths_[d - begin]) : 0;
      while (d + length < count && symbol(length) == symbol(d + length)) ++length;
      lengths_[d] = static_cast<std::uint32_t>(length);
      if (d + length > end) {
        begin = d;
        end = d + length;
      }
    }
  }

  /// As of the last `measure`; 0 beyond the beginning.
  std::uint32_t length_at(std::size_t distance) const {
    return distance < lengths_.size() ? lengths_[distance] : 0;
  }

  void drop_oldest(std::size_t count) {
    symbols_.erase(symbols_.begin(), symbols_.begin() + static_cast<std::ptrdiff_t>(count));
  }

  void set(std::size_t place, std::uint32_t symbol) { symbols_[place] = symbol; }

  /// Replaces the oldest `count` occurrences, or all there are.
  void replace(std::uint32_t symbol, std::uint32_t by, std::size_t count) {
    for (auto it = symbols_.begin(); it != symbols_.end() && count > 0; ++it) {
      if (*it != symbol) continue;
      *it = by;
      --count;
    }
  }

 private:
  std::vector<std::uint32_t> symbols_;  // oldest first
  std::vector<std::uint32_t> lengths_;  // by distance
};

}  // namespace kolo::runtime

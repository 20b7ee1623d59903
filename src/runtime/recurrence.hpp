#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kolo::runtime {

/// A sequence, and how far back from its end it equals itself: for every distance d, the length of
/// the longest stretch that ends the sequence and stands d earlier too.
class Recurrence {
 public:
  void append(std::uint32_t symbol) {
    const std::size_t last = symbols_.size();
    symbols_.push_back(symbol);
    lengths_.push_back(0);
    // By distance and not by place, so that nothing moves and the loop is one of vectors.
    for (std::size_t d = 1; d <= last; ++d) {
      lengths_[d] = symbols_[last - d] == symbol ? lengths_[d] + 1 : 0;
    }
  }

  std::size_t size() const { return symbols_.size(); }
  std::uint32_t operator[](std::size_t place) const { return symbols_[place]; }

  /// 0 where nothing stands so far back.
  std::uint32_t length_at(std::size_t distance) const {
    return distance < lengths_.size() ? lengths_[distance] : 0;
  }

  void drop_oldest(std::size_t count) {
    symbols_.erase(symbols_.begin(), symbols_.begin() + static_cast<std::ptrdiff_t>(count));
    lengths_.resize(symbols_.size());
    for (std::size_t d = 0; d < lengths_.size(); ++d) {
      const auto longest = static_cast<std::uint32_t>(lengths_.size() - d);
      if (lengths_[d] > longest) lengths_[d] = longest;
    }
  }

  /// Neither old nor new symbols equal these any more.
  void replace(std::uint32_t symbol, std::uint32_t by) {
    for (std::uint32_t& old : symbols_) {
      if (old == symbol) old = by;
    }
  }

 private:
  std::vector<std::uint32_t> symbols_;  // oldest first
  std::vector<std::uint32_t> lengths_;  // by distance; that at 0 is not used
};

}  // namespace kolo::runtime

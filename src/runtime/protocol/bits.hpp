#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kolo::runtime {

/// A set of small integers (the bits of a request table). Grows as needed; absent words are zero,
/// so sets of different length compare, intersect and unite by value. The first 64 bits need no
/// allocation.
class Bits {
 public:
  void set(int bit) { grow(index(bit)) |= mask(bit); }
  void reset(int bit) {
    if (index(bit) < word_count()) grow(index(bit)) &= ~mask(bit);
  }
  bool test(int bit) const { return (word(index(bit)) & mask(bit)) != 0; }
  void clear() {
    first_ = 0;
    rest_.clear();
  }
  bool none() const {
    for (std::size_t i = 0; i < word_count(); ++i) {
      if (word(i) != 0) return false;
    }
    return true;
  }

  int count() const {
    int count = 0;
    for (std::size_t i = 0; i < word_count(); ++i) count += std::popcount(word(i));
    return count;
  }

  Bits& operator|=(const Bits& other) {
    for (std::size_t i = 0; i < other.word_count(); ++i) grow(i) |= other.word(i);
    return *this;
  }
  Bits& operator&=(const Bits& other) {
    for (std::size_t i = 0; i < word_count(); ++i) grow(i) &= other.word(i);
    return *this;
  }
  Bits& operator-=(const Bits& other) {
    for (std::size_t i = 0; i < word_count(); ++i) grow(i) &= ~other.word(i);
    return *this;
  }
  friend Bits operator|(Bits a, const Bits& b) { return a |= b; }
  friend Bits operator&(Bits a, const Bits& b) { return a &= b; }
  friend Bits operator-(Bits a, const Bits& b) { return a -= b; }
  bool contains(const Bits& other) const {
    for (std::size_t i = 0; i < other.word_count(); ++i) {
      if ((other.word(i) & ~word(i)) != 0) return false;
    }
    return true;
  }
  bool intersects(const Bits& other) const {
    for (std::size_t i = 0; i < word_count(); ++i) {
      if ((word(i) & other.word(i)) != 0) return true;
    }
    return false;
  }
  bool operator==(const Bits& other) const { return contains(other) && other.contains(*this); }

  /// Calls `visit(bit)` in ascending order.
  template <class Visit>
  void for_each(Visit visit) const {
    for (std::size_t i = 0; i < word_count(); ++i) {
      for (std::uint64_t rest = word(i); rest != 0; rest &= rest - 1) {
        visit(static_cast<int>(i) * 64 + std::countr_zero(rest));
      }
    }
  }

  std::uint64_t word(std::size_t i) const {
    if (i == 0) return first_;
    return i <= rest_.size() ? rest_[i - 1] : 0;
  }
  std::size_t word_count() const { return 1 + rest_.size(); }
  void set_word(std::size_t i, std::uint64_t value) { grow(i) = value; }

 private:
  static std::size_t index(int bit) { return static_cast<std::size_t>(bit) / 64; }
  static std::uint64_t mask(int bit) {
    return std::uint64_t{1} << (static_cast<unsigned>(bit) % 64);
  }
  std::uint64_t& grow(std::size_t i) {
    if (i == 0) return first_;
    if (i > rest_.size()) rest_.resize(i);
    return rest_[i - 1];
  }

  std::uint64_t first_ = 0;
  std::vector<std::uint64_t> rest_;
};

}  // namespace kolo::runtime

#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kolo::runtime {

/// A set of small integers (the bits of a request table). Grows as needed; absent words are zero,
/// so sets of different length compare, intersect and unite by value.
class Bits {
 public:
  void set(int bit) {
    const std::size_t word = index(bit);
    if (word >= words_.size()) words_.resize(word + 1);
    words_[word] |= mask(bit);
  }
  void reset(int bit) {
    if (index(bit) < words_.size()) words_[index(bit)] &= ~mask(bit);
  }
  bool test(int bit) const {
    return index(bit) < words_.size() && (words_[index(bit)] & mask(bit)) != 0;
  }
  void clear() { words_.clear(); }
  bool none() const {
    for (const std::uint64_t word : words_) {
      if (word != 0) return false;
    }
    return true;
  }

  int count() const {
    int count = 0;
    for (const std::uint64_t word : words_) count += std::popcount(word);
    return count;
  }

  Bits& operator|=(const Bits& other) {
    if (words_.size() < other.words_.size()) words_.resize(other.words_.size());
    for (std::size_t i = 0; i < other.words_.size(); ++i) words_[i] |= other.words_[i];
    return *this;
  }
  Bits& operator&=(const Bits& other) {
    for (std::size_t i = 0; i < words_.size(); ++i) words_[i] &= other.word(i);
    return *this;
  }
  Bits& operator-=(const Bits& other) {
    for (std::size_t i = 0; i < words_.size(); ++i) words_[i] &= ~other.word(i);
    return *this;
  }
  friend Bits operator|(Bits a, const Bits& b) { return a |= b; }
  friend Bits operator&(Bits a, const Bits& b) { return a &= b; }
  friend Bits operator-(Bits a, const Bits& b) { return a -= b; }
  bool contains(const Bits& other) const {
    for (std::size_t i = 0; i < other.words_.size(); ++i) {
      if ((other.words_[i] & ~word(i)) != 0) return false;
    }
    return true;
  }
  bool intersects(const Bits& other) const {
    for (std::size_t i = 0; i < words_.size(); ++i) {
      if ((words_[i] & other.word(i)) != 0) return true;
    }
    return false;
  }
  bool operator==(const Bits& other) const { return contains(other) && other.contains(*this); }

  /// Calls `visit(bit)` in ascending order.
  template <class Visit>
  void for_each(Visit visit) const {
    for (std::size_t i = 0; i < words_.size(); ++i) {
      for (std::uint64_t rest = words_[i]; rest != 0; rest &= rest - 1) {
        visit(static_cast<int>(i) * 64 + std::countr_zero(rest));
      }
    }
  }

  std::uint64_t word(std::size_t i) const { return i < words_.size() ? words_[i] : 0; }
  std::size_t word_count() const { return words_.size(); }
  void set_word(std::size_t i, std::uint64_t value) {
    if (i >= words_.size()) words_.resize(i + 1);
    words_[i] = value;
  }

 private:
  static std::size_t index(int bit) { return static_cast<std::size_t>(bit) / 64; }
  static std::uint64_t mask(int bit) {
    return std::uint64_t{1} << (static_cast<unsigned>(bit) % 64);
  }

  std::vector<std::uint64_t> words_;
};

}  // namespace kolo::runtime

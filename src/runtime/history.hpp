#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "runtime/bits.hpp"

namespace kolo::runtime {

/// Which batches ran, in order, and which is to be expected next: the one that followed the longest
/// earlier stretch equal to the most recent one. A program that alternates between several orders
/// is predicted without error once the history holds two rounds of it.
///
/// A composition is a set of table bits that ran as one batch. The same on every rank.
class History {
 public:
  using Composition = int;  ///< index; a set of bits keeps its index until one of them is evicted
  static constexpr Composition kNone = -1;

  /// Remembers the last `capacity` batches.
  explicit History(std::size_t capacity = 2048) : capacity_(capacity) {}

  /// The composition of exactly these bits, made when there is none.
  Composition intern(const std::vector<int>& bits);
  const std::vector<int>& bits_of(Composition composition) const {
    return compositions_[static_cast<std::size_t>(composition)].bits;
  }
  const Bits& set_of(Composition composition) const {
    return compositions_[static_cast<std::size_t>(composition)].set;
  }

  /// The largest known composition whose lowest bit is `bit` and that lies within `bits`.
  Composition largest_within(const Bits& bits, int bit) const;

  void append(Composition composition);
  /// What is expected to run next, or kNone.
  Composition predict() const { return prediction_; }

  /// Forgets every composition with this bit: the bit will stand for another request.
  void forget(int bit);

 private:
  struct Known {
    std::vector<int> bits;
    Bits set;
  };
  void update_prediction();

  std::size_t capacity_;
  std::vector<Known> compositions_;
  std::map<std::vector<int>, Composition> index_;  // ordered: ranges by lowest bit
  std::vector<Composition> ran_;                   // oldest first
  // matches_[i]: how long a stretch of ran_ that ends before i equals the most recent one.
  std::vector<std::uint32_t> matches_;
  Composition prediction_ = kNone;
};

}  // namespace kolo::runtime

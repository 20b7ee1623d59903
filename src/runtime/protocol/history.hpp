#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "runtime/protocol/bits.hpp"

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

/// The batches that ran, and a prediction of the next one. The same on every rank.
///
/// A composition is a set of table bits that ran as one batch. Every iteration of a program runs
/// the same set of operations, in an order that is partly random. History is therefore kept in
/// rounds, in each of which no bit runs twice. An earlier round serves as the model of the current
/// one: among the earlier rounds, pick those whose predecessors match the longest as sets (half as
/// long is good enough), and of these the one whose preceding batches match the longest in order.
/// The prediction is the first batch of the model that has not run in the current round. While
/// predictions are right, the model stays, and the round after it becomes the next model; a wrong
/// prediction selects a new model. A program that alternates between several sets or orders is
/// predicted without error once the history holds a few rounds of it.
///
/// A bit that has run only once may never come again, such as a request whose name counts steps: it
/// is never predicted, and rounds are compared without it.
class History {
 public:
  /// An index. A set of bits keeps its index until one of its bits is evicted or the history no
  /// longer contains it; then another set may take the index.
  using Composition = int;
  static constexpr Composition kNone = -1;

  /// Remembers about `capacity` batches.
  explicit History(std::size_t capacity = 2048) : capacity_(capacity) {}

  /// The composition of exactly these bits; added if there is none.
  Composition intern(const std::vector<int>& bits);
  const std::vector<int>& bits_of(Composition composition) const {
    return compositions_[static_cast<std::size_t>(composition)].bits;
  }
  const Bits& set_of(Composition composition) const {
    return compositions_[static_cast<std::size_t>(composition)].set;
  }

  /// The largest known composition with `bit` as its lowest bit and all its bits in `bits`, or
  /// kNone.
  Composition largest_within(const Bits& bits, int bit) const;

  void append(Composition composition);
  /// The batch predicted to run next, or kNone.
  Composition predict() const { return prediction_; }

  /// Forgets every composition with this bit, which another request will get.
  void forget(int bit);

  /// Number of compositions in memory.
  std::size_t composition_count() const { return compositions_.size(); }

 private:
  struct Known {
    std::vector<int> bits;
    Bits set;
    std::size_t runs = 0;  ///< it is in the history at most as often
  };
  struct Round {
    std::size_t begin = 0;  // of its batches; they end where the next round's begin
    Bits set;               // all their bits
  };
  using Index = std::map<std::vector<int>, Composition>;  // ordered: ranges by lowest bit
  static constexpr std::size_t kNoRound = static_cast<std::size_t>(-1);

  void index_by_bit(Composition composition);
  Index::iterator drop(Index::iterator place);
  void learn(const Bits& set);
  bool is_complete() const;
  void begin_round();
  void drop_oldest();
  void drop_unused();
  void find_model();
  void take_model(std::size_t round);
  void update_prediction();
  Composition rest_of_model();
  Composition expected_of(Composition composition, const Bits& ran);

  std::size_t capacity_;
  std::vector<Known> compositions_;
  std::vector<Composition> free_;  // unused indices
  Index index_;
  std::vector<std::vector<Composition>> by_bit_;  // those with each bit; some have been dropped
  Recurrence batches_;                            // compositions that ran, or kForgotten
  Recurrence ends_;               // digests of the sets of all rounds but the current one
  Bits ran_;                      // all bits in memory
  Bits recurring_;                // of these: that have run more than once
  std::vector<Round> rounds_;     // oldest first; the last one is the current round
  std::size_t model_ = kNoRound;  // the earlier round that the current one should repeat
  std::size_t next_ = 0;          // in the model: all batches before it have run in this round
  Composition prediction_ = kNone;
};

}  // namespace kolo::runtime

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "runtime/protocol/bits.hpp"
#include "runtime/protocol/recurrence.hpp"

namespace kolo::runtime {

/// Which batches ran, and which is to be expected next. The same on every rank.
///
/// A composition is a set of table bits that ran as one batch. What runs in a step of a program is
/// fixed, its order may be partly chance. So history is kept in rounds, stretches in which nothing
/// runs twice. The round under way is taken for an earlier one, its model: of those that followed
/// about as long a stretch of equal rounds, equal as sets, as any other, the one that followed the
/// longest stretch of batches equal in order too. A model is kept, and followed by the round after
/// it, as long as it foretells rightly. Expected next is the first of the model's batches that has
/// not run in this round. A program that alternates between several sets or orders is
/// predicted without error once the history holds a few rounds of it.
class History {
 public:
  /// Index; a set of bits keeps its index until one of them is evicted, or until nothing of what is
  /// remembered ran as that set. Then the index may stand for another.
  using Composition = int;
  static constexpr Composition kNone = -1;

  /// Remembers about `capacity` batches.
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

  /// Compositions that there is memory for.
  std::size_t composition_count() const { return compositions_.size(); }

 private:
  struct Known {
    std::vector<int> bits;
    Bits set;
  };
  struct Round {
    std::size_t begin = 0;  // of its batches; they end where the next round's begin
    Bits set;               // all their bits
  };
  using Index = std::map<std::vector<int>, Composition>;  // ordered: ranges by lowest bit
  static constexpr std::size_t kNoRound = static_cast<std::size_t>(-1);

  Index::iterator give_up(Index::iterator place);
  bool is_complete() const;
  void begin_round();
  void drop_oldest();
  void give_up_unused();
  void find_model();
  void take_model(std::size_t round);
  void update_prediction();
  Composition rest_of_model();

  std::size_t capacity_;
  std::vector<Known> compositions_;
  std::vector<Composition> free_;  // indices that stand for nothing
  Index index_;
  Recurrence batches_;            // compositions that ran, or kForgotten
  Recurrence ends_;               // digests of the sets of all rounds but the one under way
  std::vector<Round> rounds_;     // oldest first, the last one under way
  std::size_t model_ = kNoRound;  // the complete round that the one under way is taken for
  std::size_t next_ = 0;          // of its batches: all before have run in the one under way
  Composition prediction_ = kNone;
};

}  // namespace kolo::runtime

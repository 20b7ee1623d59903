#pragma once

#include <cstddef>
#include <optional>
#include <set>
#include <vector>

#include "runtime/protocol/bits.hpp"

namespace kolo::runtime {

/// Table bits that ran as one batch.
struct Composition {
  std::vector<int> bits;  // ascending
  Bits set;

  friend bool operator<(const Composition& a, const Composition& b) { return a.bits < b.bits; }
};

/// The batches that ran, and a prediction of the next one. The same on every rank.
///
/// Every iteration of a program runs the same set of operations, in an order that is partly random.
/// History is therefore kept in rounds, in each of which no bit runs twice. An earlier round is the
/// model of the current one, and the first batch of the model that has not run in the current round
/// is predicted. While predictions are right, the round after the model becomes the next model; a
/// wrong one selects a new model. A program that alternates between several sets or orders is
/// predicted without error once the history holds a few rounds of it.
///
/// What runs for the first time may never come again, such as a request whose name counts steps: it
/// is not predicted, and rounds are compared without it.
class History {
 public:
  /// Remembers about `capacity` batches.
  explicit History(std::size_t capacity = 2048) : capacity_(capacity) {}
  History(History&&) = default;  // but no copies: it points to its compositions

  /// The composition of these bits, which ascend; added if there is none. It stays while it is in
  /// the history, until one of its bits is forgotten.
  const Composition* intern(std::vector<int> bits);
  /// The largest known composition whose lowest bit is `bit` and that `bits` contains, or null.
  const Composition* largest_within(const Bits& bits, int bit) const;

  void append(const Composition* batch);
  /// The batch predicted to run next, or null.
  const Composition* predict() const { return prediction_; }
  /// Forgets every composition with one of these bits, which other requests will get.
  void forget(const Bits& bits);

  /// Number of compositions in memory.
  std::size_t composition_count() const { return known_.size(); }

 private:
  struct Round {
    std::size_t begin;  // of its batches; they end where the next round's begin
    Bits set;           // of them: what has run before
  };

  bool is_complete() const;
  void find_model();
  void update_prediction();
  void drop_oldest();

  std::size_t capacity_;
  std::set<Composition> known_;              // ordered: ranges by lowest bit
  std::vector<const Composition*> batches_;  // oldest first; null: forgotten
  std::vector<Round> rounds_;                // oldest first; the last one is the current round
  Bits ran_;                                 // all bits that have run
  Bits recurring_;                           // of these: more than once
  std::optional<std::size_t> model_;         // the earlier round that the current one should repeat
  std::size_t next_ = 0;  // in the model: all batches before it have run in this round
  const Composition* prediction_ = nullptr;
};

}  // namespace kolo::runtime

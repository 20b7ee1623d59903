#include "runtime/protocol/history.hpp"

#include <algorithm>
#include <cstddef>
#include <set>
#include <utility>
#include <vector>

namespace kolo::runtime {

const Composition* History::intern(std::vector<int> bits) {
  Composition composition{std::move(bits), {}};
  for (const int bit : composition.bits) composition.set.set(bit);
  return &*known_.insert(std::move(composition)).first;
}

const Composition* History::largest_within(const Bits& bits, int bit) const {
  const Composition* best = nullptr;
  const auto end = known_.lower_bound({{bit + 1}, {}});
  for (auto it = known_.lower_bound({{bit}, {}}); it != end; ++it) {
    if (!bits.contains(it->set)) continue;
    if (best == nullptr || it->bits.size() > best->bits.size()) best = &*it;
  }
  return best;
}

void History::append(const Composition* batch) {
  const Bits& set = batch->set;
  if (!recurring_.contains(set)) {
    recurring_ |= set & ran_;
    ran_ |= set;
  }
  const bool is_surprise = batch != prediction_ && recurring_.intersects(set);
  const bool ends_model = is_complete() && !is_surprise;
  const bool ends_round = rounds_.empty() || rounds_.back().set.intersects(set) || is_complete() ||
                          batches_.size() - rounds_.back().begin >= capacity_ / 2;
  if (ends_round) rounds_.push_back({batches_.size(), {}});
  rounds_.back().set |= set & recurring_;
  batches_.push_back(batch);
  if (!model_ || is_surprise || ends_round != ends_model) {
    find_model();
  } else if (ends_model) {
    next_ = rounds_[++*model_].begin;
  }
  if (batches_.size() > capacity_) drop_oldest();
  update_prediction();
}

/// Everything in the model has run in the current round. A model of which nothing recurs is never
/// complete, or batches that run once would each be a round.
bool History::is_complete() const {
  return model_ && next_ == rounds_[*model_ + 1].begin && !rounds_[*model_].set.none();
}

/// Among the rounds that contain what has run in the current one: the latest whose predecessors
/// match the longest as sets, and of these the one whose preceding batches match the longest.
void History::find_model() {
  const std::size_t current = rounds_.size() - 1;
  // Of equal rounds the latest always matches the longest, whatever its order.
  const std::size_t enough = std::min<std::size_t>(current / 2, 24);
  const std::size_t end = batches_.size();
  std::pair<std::size_t, std::size_t> best;
  model_.reset();
  for (std::size_t i = 0; i < current; ++i) {
    if (!rounds_[i].set.contains(rounds_[current].set)) continue;
    std::size_t sets = 0;
    while (sets < std::min(i, enough) &&
           rounds_[i - 1 - sets].set == rounds_[current - 1 - sets].set) {
      ++sets;
    }
    const std::size_t at = rounds_[i].begin + (end - rounds_[current].begin);
    std::size_t order = 0;
    while (order < at && batches_[at - 1 - order] == batches_[end - 1 - order]) ++order;
    if (std::pair(sets, order) < best) continue;
    best = {sets, order};
    model_ = i;
    next_ = rounds_[i].begin;
  }
}

/// The first batch of the model that has not run in the current round, or what is left of it. If
/// there is none, the first batch after the model.
void History::update_prediction() {
  prediction_ = nullptr;
  if (!model_) return;
  const std::size_t end = rounds_[*model_ + 1].begin;
  Bits expected = recurring_ - rounds_.back().set;
  const auto is_expected = [&](const Composition* batch) {
    return batch != nullptr && batch->set.intersects(expected);
  };
  while (next_ < end && !is_expected(batches_[next_])) ++next_;
  std::size_t place = next_;
  if (is_complete()) {
    expected = recurring_;
    while (place < batches_.size() && !is_expected(batches_[place])) ++place;
  }
  if (place == batches_.size() || !is_expected(batches_[place])) return;
  prediction_ = batches_[place];
  if (expected.contains(prediction_->set)) return;
  std::vector<int> rest;
  (prediction_->set & expected).for_each([&](int bit) { rest.push_back(bit); });
  prediction_ = intern(std::move(rest));
}

/// Drops the older half of the rounds in one go, and compositions that ran only there: random
/// orders keep adding new ones.
void History::drop_oldest() {
  const auto rounds = static_cast<std::ptrdiff_t>(rounds_.size() / 2);
  const std::size_t dropped = rounds_[rounds_.size() / 2].begin;
  rounds_.erase(rounds_.begin(), rounds_.begin() + rounds);
  batches_.erase(batches_.begin(), batches_.begin() + static_cast<std::ptrdiff_t>(dropped));
  for (Round& round : rounds_) round.begin -= dropped;
  const std::set<const Composition*> used(batches_.begin(), batches_.end());
  std::erase_if(known_, [&](const Composition& known) { return !used.contains(&known); });
  find_model();
}

void History::forget(const Bits& bits) {
  ran_ -= bits;
  recurring_ -= bits;
  for (Round& round : rounds_) round.set -= bits;
  const auto is_forgotten = [&](const Composition& known) {
    return std::ranges::any_of(known.bits, [&](int bit) { return bits.test(bit); });
  };
  for (const Composition*& batch : batches_) {
    if (batch != nullptr && is_forgotten(*batch)) batch = nullptr;
  }
  std::erase_if(known_, is_forgotten);
  update_prediction();
}

}  // namespace kolo::runtime

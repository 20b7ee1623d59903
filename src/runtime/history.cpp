#include "runtime/history.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace kolo::runtime {

History::Composition History::intern(const std::vector<int>& bits) {
  const auto [place, is_new] =
      index_.try_emplace(bits, static_cast<Composition>(compositions_.size()));
  if (is_new) {
    Known known{bits, {}};
    for (const int bit : bits) known.set.set(bit);
    compositions_.push_back(std::move(known));
  }
  return place->second;
}

History::Composition History::largest_within(const Bits& bits, int bit) const {
  Composition best = kNone;
  for (auto it = index_.lower_bound({bit}); it != index_.end() && it->first.front() == bit; ++it) {
    if (!bits.contains(set_of(it->second))) continue;
    if (best == kNone || it->first.size() > bits_of(best).size()) best = it->second;
  }
  return best;
}

void History::append(Composition composition) {
  const Bits& set = set_of(composition);
  const bool ends_round = rounds_.empty() || !(rounds_.back().set & set).none() || is_complete() ||
                          ran_.size() - rounds_.back().begin >= capacity_ / 2;
  if (ends_round) begin_round();
  rounds_.back().set |= set;
  ran_.push_back(composition);
  lengthen_matches();
  find_model();
  update_prediction();
}

/// All that the model has has run.
bool History::is_complete() const {
  return model_ != kNoRound && rounds_[model_].set == rounds_.back().set;
}

void History::begin_round() {
  if (ran_.size() >= capacity_) drop_oldest();
  // A stretch that ended before a round equal to the last one is longer by it before the next round.
  std::uint32_t match = 0;
  for (Round& round : rounds_) {
    const std::uint32_t longer = round.set == rounds_.back().set ? round.match + 1 : 0;
    round.match = std::exchange(match, longer);
  }
  rounds_.push_back({ran_.size(), {}, match});
}

/// The older half of the rounds: amortised, no ring arithmetic.
void History::drop_oldest() {
  const std::size_t rounds = rounds_.size() / 2;
  const std::size_t batches = rounds_[rounds].begin;
  const auto drop = [](auto& from, std::size_t count) {
    from.erase(from.begin(), from.begin() + static_cast<std::ptrdiff_t>(count));
  };
  drop(rounds_, rounds);
  drop(ran_, batches);
  drop(matches_, batches);
  for (std::size_t i = 0; i < rounds_.size(); ++i) {
    rounds_[i].begin -= batches;
    rounds_[i].match = std::min(rounds_[i].match, static_cast<std::uint32_t>(i));
  }
  for (std::size_t i = 0; i < matches_.size(); ++i) {
    matches_[i] = std::min(matches_[i], static_cast<std::uint32_t>(i));
  }
}

/// A stretch that ended before i and was followed by the last batch is one longer before i + 1.
void History::lengthen_matches() {
  matches_.push_back(0);
  for (std::size_t i = ran_.size() - 1; i > 0; --i) {
    matches_[i] = ran_[i - 1] == ran_.back() ? matches_[i - 1] + 1 : 0;
  }
  matches_[0] = 0;
}

void History::find_model() {
  const Round& current = rounds_.back();
  const std::size_t count = rounds_.size() - 1;
  std::uint32_t longest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (rounds_[i].set.contains(current.set)) longest = std::max(longest, rounds_[i].match);
  }
  // Where all rounds are equal as sets, the latest has the longest match whatever their orders: half
  // of it is as good.
  model_ = kNoRound;
  std::uint32_t best = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (2 * rounds_[i].match < longest || !rounds_[i].set.contains(current.set)) continue;
    const std::size_t next = rounds_[i].begin + (ran_.size() - current.begin);
    const std::uint32_t match = next < matches_.size() ? matches_[next] : 0;
    if (match < best) continue;
    best = match;
    model_ = i;
  }
}

void History::update_prediction() {
  prediction_ = kNone;
  if (model_ == kNoRound) return;
  prediction_ = is_complete() ? ran_[rounds_[model_ + 1].begin] : rest_of_model();
}

/// The first batch of the model that has not run in this round, or what is left of it.
History::Composition History::rest_of_model() {
  for (std::size_t i = rounds_[model_].begin; i < rounds_[model_ + 1].begin; ++i) {
    if (ran_[i] == kNone) continue;
    std::vector<int> rest;
    for (const int bit : bits_of(ran_[i])) {
      if (!rounds_.back().set.test(bit)) rest.push_back(bit);
    }
    if (!rest.empty()) return intern(rest);
  }
  return kNone;
}

void History::forget(int bit) {
  for (auto it = index_.begin(); it != index_.end();) {
    if (!set_of(it->second).test(bit)) {
      ++it;
      continue;
    }
    std::replace(ran_.begin(), ran_.end(), it->second, kNone);
    it = index_.erase(it);
  }
  for (Round& round : rounds_) round.set.reset(bit);
  if (!rounds_.empty()) update_prediction();
}

}  // namespace kolo::runtime

#include "runtime/protocol/history.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>

namespace kolo::runtime {
namespace {

constexpr auto kForgotten = static_cast<std::uint32_t>(History::kNone);

bool are_equal_within(const Bits& some, const Bits& a, const Bits& b) {
  const std::size_t words = std::max(a.word_count(), b.word_count());
  for (std::size_t i = 0; i < words; ++i) {
    if (((a.word(i) ^ b.word(i)) & some.word(i)) != 0) return false;
  }
  return true;
}

/// A collision of digests costs at most a wrong prediction.
std::uint32_t digest_of(const Bits& set) {
  std::uint64_t digest = 0;
  set.for_each([&](int bit) {
    digest = (digest ^ static_cast<std::uint64_t>(bit + 1)) * 0x9E3779B97F4A7C15;
  });
  return static_cast<std::uint32_t>(digest >> 32);
}

}  // namespace

History::Composition History::intern(const std::vector<int>& bits) {
  const auto [place, is_new] = index_.try_emplace(bits, kNone);
  if (!is_new) return place->second;
  Known known{bits, {}};
  for (const int bit : bits) known.set.set(bit);
  if (free_.empty()) {
    place->second = static_cast<Composition>(compositions_.size());
    compositions_.push_back(std::move(known));
  } else {
    place->second = free_.back();
    free_.pop_back();
    compositions_[static_cast<std::size_t>(place->second)] = std::move(known);
  }
  index_by_bit(place->second);
  return place->second;
}

void History::index_by_bit(Composition composition) {
  const std::vector<int>& bits = bits_of(composition);
  const std::size_t needed = static_cast<std::size_t>(bits.back()) + 1;
  if (by_bit_.size() < needed) by_bit_.resize(needed);
  for (const int bit : bits) by_bit_[static_cast<std::size_t>(bit)].push_back(composition);
}

History::Index::iterator History::drop(Index::iterator place) {
  compositions_[static_cast<std::size_t>(place->second)] = {};
  free_.push_back(place->second);
  return index_.erase(place);
}

History::Composition History::largest_within(const Bits& bits, int bit) const {
  Composition best = kNone;
  for (auto it = index_.lower_bound({bit}); it != index_.end() && it->first.front() == bit; ++it) {
    if (!bits.contains(set_of(it->second))) continue;
    if (best == kNone || it->first.size() > bits_of(best).size()) best = it->second;
  }
  return best;
}

/// Notes which bits of a batch run again.
void History::learn(const Bits& set) {
  const Bits again = (set & ran_) - recurring_;
  ran_ |= set;
  if (again.none()) return;
  recurring_ |= again;
  for (std::size_t i = 0; i + 1 < rounds_.size(); ++i) {
    if (rounds_[i].set.intersects(again)) ends_.set(i, digest_of(rounds_[i].set & recurring_));
  }
}

void History::append(Composition composition) {
  const Bits& set = set_of(composition);
  if (!recurring_.contains(set)) learn(set);
  const bool is_new = !recurring_.intersects(set);
  const bool is_no_surprise = composition == prediction_ || is_new;
  const bool follows_model = is_no_surprise && is_complete();
  const bool ends_round = rounds_.empty() || rounds_.back().set.intersects(set) || is_complete() ||
                          batches_.size() - rounds_.back().begin >= capacity_ / 2;
  const std::size_t remembered = batches_.size();
  if (ends_round) begin_round();
  const bool has_dropped = batches_.size() < remembered;
  rounds_.back().set |= set;
  ++compositions_[static_cast<std::size_t>(composition)].runs;
  batches_.append(static_cast<std::uint32_t>(composition));
  if (is_new && !ends_round) return;  // which changes no prediction
  if (model_ == kNoRound || !is_no_surprise || ends_round != follows_model) {
    find_model();
  } else if (follows_model) {
    take_model(model_ + 1);
  }
  update_prediction();
  if (has_dropped) drop_unused();
}

/// Everything in the model has run in the current round. A model without recurring bits is never
/// complete, or batches that run once would each be a round.
bool History::is_complete() const {
  return model_ != kNoRound && recurring_.intersects(rounds_[model_].set) &&
         are_equal_within(recurring_, rounds_[model_].set, rounds_.back().set);
}

void History::begin_round() {
  if (batches_.size() >= capacity_) drop_oldest();
  if (!rounds_.empty()) ends_.append(digest_of(rounds_.back().set & recurring_));
  rounds_.push_back({batches_.size(), {}});
}

/// Drops the older half of the rounds in one go: cheap when amortised, and no ring arithmetic.
void History::drop_oldest() {
  const std::size_t count = rounds_.size() / 2;
  const std::size_t batches = rounds_[count].begin;
  rounds_.erase(rounds_.begin(), rounds_.begin() + static_cast<std::ptrdiff_t>(count));
  for (Round& round : rounds_) round.begin -= batches;
  ends_.drop_oldest(count);
  batches_.drop_oldest(batches);
  model_ = model_ == kNoRound || model_ < count ? kNoRound : model_ - count;
}

/// Drops compositions that are neither in the history nor predicted. Random orders keep adding new
/// ones.
void History::drop_unused() {
  std::vector<bool> is_used(compositions_.size());
  const auto use = [&](Composition composition) {
    if (composition != kNone) is_used[static_cast<std::size_t>(composition)] = true;
  };
  for (std::size_t i = 0; i < batches_.size(); ++i) use(static_cast<Composition>(batches_[i]));
  use(prediction_);
  for (auto it = index_.begin(); it != index_.end();) {
    it = is_used[static_cast<std::size_t>(it->second)] ? std::next(it) : drop(it);
  }
  by_bit_.clear();
  for (const auto& [bits, composition] : index_) index_by_bit(composition);
}

void History::find_model() {
  batches_.measure();
  ends_.measure();
  const Round& current = rounds_.back();
  const std::size_t count = rounds_.size() - 1;
  const Bits ran = current.set & recurring_;
  // How many rounds before round i equal the latest complete rounds, as sets.
  const auto match_of = [&](std::size_t i) { return ends_.length_at(count - i); };
  std::uint32_t longest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (match_of(i) > longest && rounds_[i].set.contains(ran)) longest = match_of(i);
  }
  // If all rounds are equal as sets, the latest has the longest match whatever its order. So half
  // of the longest is good enough.
  std::size_t model = kNoRound;
  std::uint32_t best = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (2 * match_of(i) < longest || !rounds_[i].set.contains(ran)) continue;
    const std::size_t next = rounds_[i].begin + (batches_.size() - current.begin);
    const std::uint32_t match =
        next < batches_.size() ? batches_.length_at(batches_.size() - next) : 0;
    if (match < best) continue;
    best = match;
    model = i;
  }
  take_model(model);
}

void History::take_model(std::size_t round) {
  model_ = round;
  if (round != kNoRound) next_ = rounds_[round].begin;
}

void History::update_prediction() {
  prediction_ = kNone;
  if (model_ == kNoRound) return;
  if (!is_complete()) {
    prediction_ = rest_of_model();
    return;
  }
  const std::size_t end = model_ + 2 < rounds_.size() ? rounds_[model_ + 2].begin : batches_.size();
  for (std::size_t i = rounds_[model_ + 1].begin; i < end && prediction_ == kNone; ++i) {
    if (batches_[i] == kForgotten) return;
    prediction_ = expected_of(static_cast<Composition>(batches_[i]), {});
  }
}

/// The first batch of the model that has not run in the current round, or its remaining part.
History::Composition History::rest_of_model() {
  for (; next_ < rounds_[model_ + 1].begin; ++next_) {
    if (batches_[next_] == kForgotten) continue;
    const Composition rest =
        expected_of(static_cast<Composition>(batches_[next_]), rounds_.back().set);
    if (rest != kNone) return rest;
  }
  return kNone;
}

/// The bits of a batch that have run more than once, but are not in `ran`; kNone: there are none.
History::Composition History::expected_of(Composition composition, const Bits& ran) {
  const Bits& set = set_of(composition);
  if (recurring_.contains(set) && !ran.intersects(set)) return composition;
  std::vector<int> rest;
  for (const int bit : bits_of(composition)) {
    if (recurring_.test(bit) && !ran.test(bit)) rest.push_back(bit);
  }
  return rest.empty() ? kNone : intern(rest);
}

void History::forget(int bit) {
  const bool was_recurring = recurring_.test(bit);
  ran_.reset(bit);
  recurring_.reset(bit);
  const auto index = static_cast<std::size_t>(bit);
  if (index >= by_bit_.size()) return;
  for (const Composition composition : std::exchange(by_bit_[index], {})) {
    const Known& known = compositions_[static_cast<std::size_t>(composition)];
    if (!known.set.test(bit)) continue;
    batches_.replace(static_cast<std::uint32_t>(composition), kForgotten, known.runs);
    drop(index_.find(known.bits));
  }
  for (Round& round : rounds_) round.set.reset(bit);
  if (!was_recurring) return;
  take_model(model_);
  update_prediction();
}

}  // namespace kolo::runtime

#include "runtime/protocol/history.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>

namespace kolo::runtime {
namespace {

constexpr auto kForgotten = static_cast<std::uint32_t>(History::kNone);

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

void History::append(Composition composition) {
  const Bits& set = set_of(composition);
  const bool was_predicted = composition == prediction_;
  const bool follows_model = was_predicted && is_complete();
  const bool ends_round = rounds_.empty() || rounds_.back().set.intersects(set) || is_complete() ||
                          batches_.size() - rounds_.back().begin >= capacity_ / 2;
  const std::size_t remembered = batches_.size();
  if (ends_round) begin_round();
  const bool has_dropped = batches_.size() < remembered;
  rounds_.back().set |= set;
  compositions_[static_cast<std::size_t>(composition)].has_run = true;
  batches_.append(static_cast<std::uint32_t>(composition));
  if (model_ == kNoRound || !was_predicted || ends_round != follows_model) {
    find_model();
  } else if (follows_model) {
    take_model(model_ + 1);
  }
  update_prediction();
  if (has_dropped) drop_unused();
}

/// Everything in the model has run in the current round.
bool History::is_complete() const {
  return model_ != kNoRound && rounds_[model_].set == rounds_.back().set;
}

void History::begin_round() {
  if (batches_.size() >= capacity_) drop_oldest();
  if (!rounds_.empty()) ends_.append(digest_of(rounds_.back().set));
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
  // How many rounds before round i equal the latest complete rounds, as sets.
  const auto match_of = [&](std::size_t i) { return ends_.length_at(count - i); };
  std::uint32_t longest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (match_of(i) > longest && rounds_[i].set.contains(current.set)) longest = match_of(i);
  }
  // If all rounds are equal as sets, the latest has the longest match whatever its order. So half
  // of the longest is good enough.
  std::size_t model = kNoRound;
  std::uint32_t best = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (2 * match_of(i) < longest || !rounds_[i].set.contains(current.set)) continue;
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
  const std::uint32_t after = batches_[rounds_[model_ + 1].begin];
  if (!is_complete()) {
    prediction_ = rest_of_model();
  } else if (after != kForgotten) {
    prediction_ = static_cast<Composition>(after);
  }
}

/// The first batch of the model that has not run in the current round, or its remaining part.
History::Composition History::rest_of_model() {
  const Bits& ran = rounds_.back().set;
  for (; next_ < rounds_[model_ + 1].begin; ++next_) {
    if (batches_[next_] == kForgotten) continue;
    const auto composition = static_cast<Composition>(batches_[next_]);
    if (!ran.intersects(set_of(composition))) return composition;
    std::vector<int> rest;
    for (const int bit : bits_of(composition)) {
      if (!ran.test(bit)) rest.push_back(bit);
    }
    if (!rest.empty()) return intern(rest);
  }
  return kNone;
}

/// Costs nothing for requests that have run once at most, of which a program may make any number.
void History::forget(int bit) {
  const auto index = static_cast<std::size_t>(bit);
  if (index >= by_bit_.size()) return;
  bool was_remembered = false;
  for (const Composition composition : std::exchange(by_bit_[index], {})) {
    const Known& known = compositions_[static_cast<std::size_t>(composition)];
    if (!known.set.test(bit)) continue;
    if (known.has_run) batches_.replace(static_cast<std::uint32_t>(composition), kForgotten);
    was_remembered |= known.has_run;
    drop(index_.find(known.bits));
  }
  if (!was_remembered) return;
  for (Round& round : rounds_) round.set.reset(bit);
  take_model(model_);
  update_prediction();
}

}  // namespace kolo::runtime

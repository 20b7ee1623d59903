#include "runtime/history.hpp"

#include <algorithm>

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
  if (ran_.size() == capacity_) {  // drop the older half: amortised, no ring arithmetic
    const auto half = static_cast<std::ptrdiff_t>(capacity_ / 2);
    ran_.erase(ran_.begin(), ran_.begin() + half);
    matches_.erase(matches_.begin(), matches_.begin() + half);
    for (std::size_t i = 0; i < matches_.size(); ++i) {
      matches_[i] = std::min(matches_[i], static_cast<std::uint32_t>(i));
    }
  }
  // A stretch that ended before i and was followed by this composition is one longer before i + 1.
  ran_.push_back(composition);
  matches_.push_back(0);
  for (std::size_t i = ran_.size() - 1; i > 0; --i) {
    matches_[i] = ran_[i - 1] == composition ? matches_[i - 1] + 1 : 0;
  }
  matches_[0] = 0;
  update_prediction();
}

void History::update_prediction() {
  // Position n, the end, always matches itself; the longest match before it, the latest among
  // equals, says what follows. matches_[i] counts the stretch that ends before i, so ran_[i]
  // followed it.
  prediction_ = kNone;
  std::uint32_t longest = 0;
  for (std::size_t i = 1; i < ran_.size(); ++i) {
    if (matches_[i] >= longest && matches_[i] > 0 && ran_[i] != kNone) {
      longest = matches_[i];
      prediction_ = ran_[i];
    }
  }
}

void History::forget(int bit) {
  for (auto it = index_.begin(); it != index_.end();) {
    const bool has_bit = set_of(it->second).test(bit);
    if (!has_bit) {
      ++it;
      continue;
    }
    std::replace(ran_.begin(), ran_.end(), it->second, kNone);
    it = index_.erase(it);
  }
  update_prediction();
}

}  // namespace kolo::runtime

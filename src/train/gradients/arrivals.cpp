#include "train/gradients/arrivals.hpp"

#include <algorithm>
#include <utility>

namespace kolo::train {

Arrivals::Arrivals(const std::vector<Bucket>& buckets, std::size_t parameters, int passes,
                   bool by_pass)
    : bucket_of_(parameters), passes_(passes), by_pass_(by_pass), missing_(buckets.size()) {
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    std::vector<std::size_t>& members = members_.emplace_back();
    for (const Bucket::Member& member : buckets[i].members) {
      members.push_back(member.parameter);
      bucket_of_[member.parameter] = i;
    }
  }
  restart();
}

bool Arrivals::add(std::size_t parameter) {
  ++counts_[parameter];
  const bool was_pending = is_pending_[parameter];
  is_pending_[parameter] = true;
  // When each pass is reduced, backward() may add to a gradient that is already counted.
  if (by_pass_ && was_pending) return false;
  return --missing_[bucket_of_[parameter]] <= 0;
}

void Arrivals::take(std::size_t bucket, const std::function<bool(std::size_t)>& present) {
  for (const std::size_t parameter : members_[bucket]) {
    is_pending_[parameter] = false;
    if (present(parameter)) is_taken_[parameter] = true;
  }
  missing_[bucket] = expected(bucket);
}

void Arrivals::drop(std::size_t parameter) {
  const int count = std::exchange(counts_[parameter], 0);
  is_taken_[parameter] = false;
  if (count == 0) return;
  missing_[bucket_of_[parameter]] += by_pass_ ? 1 : count;
  is_pending_[parameter] = false;
}

void Arrivals::restart() {
  counts_.assign(bucket_of_.size(), 0);
  is_taken_.assign(bucket_of_.size(), false);
  is_pending_.assign(bucket_of_.size(), false);
  for (std::size_t i = 0; i < missing_.size(); ++i) missing_[i] = expected(i);
}

bool Arrivals::any() const {
  return std::ranges::any_of(counts_, [](int count) { return count > 0; });
}

int Arrivals::expected(std::size_t bucket) const {
  const auto members = static_cast<int>(members_[bucket].size());
  return by_pass_ ? members : members * passes_;
}

}  // namespace kolo::train

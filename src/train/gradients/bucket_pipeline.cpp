#include "train/gradients/bucket_pipeline.hpp"

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

void Arrivals::take(std::size_t bucket) {
  for (const std::size_t parameter : members_[bucket]) is_pending_[parameter] = false;
  missing_[bucket] = expected(bucket);
}

void Arrivals::drop(std::size_t parameter) {
  const int count = std::exchange(counts_[parameter], 0);
  missing_[bucket_of_[parameter]] += by_pass_ ? 1 : count;
  is_pending_[parameter] = false;
}

void Arrivals::restart() {
  counts_.assign(bucket_of_.size(), 0);
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

namespace {

class OwnMemoryPipeline final : public BucketPipeline {
 public:
  explicit OwnMemoryPipeline(StepReductions& reductions) : reductions_(reductions) {}

  bool is_writable(std::size_t) override { return true; }
  void bucket_arrived(std::size_t bucket) override { reductions_.submit(bucket); }
  void pass_ended() override {}
  void submit_rest() override {
    for (std::size_t i = 0; i < reductions_.size(); ++i) {
      if (!reductions_.is_submitted(i)) reductions_.submit(i);
    }
  }
  std::exception_ptr restart() override { return nullptr; }

 private:
  StepReductions& reductions_;
};

}  // namespace

std::unique_ptr<BucketPipeline> make_own_memory_pipeline(StepReductions& reductions) {
  return std::make_unique<OwnMemoryPipeline>(reductions);
}

}  // namespace kolo::train

#include "torch/accelerator/batch_shares.hpp"

namespace kolo::tensors {
namespace {

/// The indices of one rank's samples in a batch.
std::vector<std::size_t> places_of(std::size_t rank, std::size_t samples, std::size_t ranks,
                                   Distribution distribution) {
  std::vector<std::size_t> places;
  if (distribution == Distribution::RoundRobin) {
    for (std::size_t place = rank; place < samples; place += ranks) places.push_back(place);
    return places;
  }
  const std::size_t end = samples * (rank + 1) / ranks;
  for (std::size_t place = samples * rank / ranks; place < end; ++place) places.push_back(place);
  return places;
}

}  // namespace

std::vector<std::size_t> places_by_rank(std::size_t samples, std::size_t ranks,
                                        Distribution distribution) {
  std::vector<std::size_t> all;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const std::vector<std::size_t> own = places_of(rank, samples, ranks, distribution);
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

std::optional<std::vector<std::size_t>> BatchShares::next(SampleSequence& sequence) {
  const std::optional<std::vector<std::size_t>> batch = sequence.next(batch_size_);
  if (!batch || (drop_last_ && batch->size() < batch_size_)) return std::nullopt;
  std::vector<std::size_t> own = places_of(rank_, batch->size(), ranks_, distribution_);
  for (std::size_t& sample : own) sample = (*batch)[sample];
  BatchShare share{
      .all = batch->size(), .own = own.size(), .given = own.size(), .distribution = distribution_};
  if (own.empty()) {  // loaders do not support empty batches
    own.push_back(batch->front());
    share.given = 1;
  }
  ahead_.push_back(share);
  return own;
}

BatchShare BatchShares::take() {
  const BatchShare share = ahead_.front();
  ahead_.pop_front();
  return share;
}

}  // namespace kolo::tensors

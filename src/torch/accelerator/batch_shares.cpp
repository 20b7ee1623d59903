#include "torch/accelerator/batch_shares.hpp"

namespace kolo::tensors {

std::optional<std::vector<std::size_t>> BatchShares::next(SampleSequence& sequence) {
  const std::optional<std::vector<std::size_t>> batch = sequence.next(batch_size_);
  if (!batch || (drop_last_ && batch->size() < batch_size_)) return std::nullopt;
  const std::size_t begin = batch->size() * rank_ / ranks_;
  const std::size_t end = batch->size() * (rank_ + 1) / ranks_;
  std::vector<std::size_t> own;
  for (std::size_t i = begin; i < end; ++i) own.push_back((*batch)[i]);
  BatchShare share{.all = batch->size(), .own = own.size(), .given = own.size()};
  if (own.empty()) {  // no loader has an empty batch
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

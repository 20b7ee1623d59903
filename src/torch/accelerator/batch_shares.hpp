#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <vector>

#include "torch/data/sample_sequence.hpp"

namespace kolo::tensors {

/// How many samples a batch has.
struct BatchShare {
  std::size_t all = 0;    ///< on all ranks
  std::size_t own = 0;    ///< of these this rank's
  std::size_t given = 0;  ///< what this rank loads: one that does not count if it has none
};

/// The batch that the program has taken last, in the innermost loop over batches.
using CurrentBatch = std::optional<BatchShare>;

/// Cuts batches of all ranks into shares, and remembers those that loaders have loaded ahead.
class BatchShares {
 public:
  BatchShares(std::size_t batch_size, bool drop_last, int rank, int ranks)
      : batch_size_(batch_size),
        drop_last_(drop_last),
        rank_(static_cast<std::size_t>(rank)),
        ranks_(static_cast<std::size_t>(ranks)) {}

  std::size_t batch_size() const { return batch_size_; }
  std::size_t ranks() const { return ranks_; }
  /// Of so many samples, those in batches.
  std::size_t usable(std::size_t samples) const {
    return drop_last_ ? samples - samples % batch_size_ : samples;
  }
  std::size_t batches(std::size_t samples) const {
    return (usable(samples) + batch_size_ - 1) / batch_size_;
  }

  void clear() { ahead_.clear(); }
  /// This rank's samples of the next batch of `sequence`, which is one for all ranks.
  std::optional<std::vector<std::size_t>> next(SampleSequence& sequence);
  /// The oldest batch of next() that was not taken yet.
  BatchShare take();

 private:
  std::size_t batch_size_;
  bool drop_last_;
  std::size_t rank_;
  std::size_t ranks_;
  std::deque<BatchShare> ahead_;
};

}  // namespace kolo::tensors

#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "extras/data/epoch_order.hpp"
#include "extras/data/sample_sequence.hpp"
#include "kolo/agreement.hpp"
#include "kolo/extras/batches.hpp"
#include "kolo/process_set.hpp"

namespace kolo::extras {

/// Which samples of a batch a rank gets: a contiguous range, or every Nth on N ranks.
enum class Distribution : bool { Contiguous, RoundRobin };

/// The numbers of samples in a batch.
struct BatchShare {
  std::size_t all = 0;    ///< on all ranks
  std::size_t own = 0;    ///< this rank's samples
  std::size_t given = 0;  ///< samples that this rank loads: one that does not count if `own` is 0
  Distribution distribution = Distribution::Contiguous;

  /// The weight of this rank's mean that makes the average over ranks the mean over all samples of
  /// the batch.
  double part_of_mean(int ranks) const {
    return static_cast<double>(own) * ranks / static_cast<double>(all);
  }
};

/// The indices in a batch of `samples`, grouped by rank in rank order.
std::vector<std::size_t> places_by_rank(std::size_t samples, std::size_t ranks,
                                        Distribution distribution);

/// The batch that the program has taken last, in the innermost loop over batches.
using CurrentBatch = std::optional<BatchShare>;

/// Divides batches into the ranks' shares, and queues the shares of batches that loaders have
/// prefetched.
class BatchShares {
 public:
  BatchShares(std::size_t batch_size, bool drop_last, Distribution distribution, int rank,
              int ranks)
      : batch_size_(batch_size),
        drop_last_(drop_last),
        distribution_(distribution),
        rank_(static_cast<std::size_t>(rank)),
        ranks_(static_cast<std::size_t>(ranks)) {}

  std::size_t batch_size() const { return batch_size_; }
  std::size_t ranks() const { return ranks_; }
  /// How many of `samples` are in batches.
  std::size_t usable(std::size_t samples) const {
    return drop_last_ ? samples - samples % batch_size_ : samples;
  }
  std::size_t batches(std::size_t samples) const {
    return (usable(samples) + batch_size_ - 1) / batch_size_;
  }

  void clear() { ahead_.clear(); }
  /// This rank's samples of the next batch of `sequence`, which is the same on all ranks.
  std::optional<std::vector<std::size_t>> next(SampleSequence& sequence);
  /// Returns the share of the oldest batch from next() that has not been taken yet.
  BatchShare take();

 private:
  std::size_t batch_size_;
  bool drop_last_;
  Distribution distribution_;
  std::size_t rank_;
  std::size_t ranks_;
  std::deque<BatchShare> ahead_;
};

/// Decides whether samples are shuffled by default.
enum class Purpose : bool { Training, Evaluation };

/// How the samples of a data set become batches.
struct BatchPlan {
  BatchShares shares;
  std::string problem;             ///< with options or data; empty if there is none
  std::vector<NamedValue> values;  ///< that must be equal on all ranks
  EpochOrder order{};              ///< only if there is no problem
};

/// @param samples of the data set, if it has a size
BatchPlan plan_batches(const std::optional<std::size_t>& samples, const BatchOptions& options,
                       Purpose purpose, const ProcessSet& set);

}  // namespace kolo::extras

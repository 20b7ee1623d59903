#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "extras/data/epoch_order.hpp"

namespace kolo::extras {

/// One rank's batches in all epochs, and how many samples all ranks together have consumed. See
/// DistributedSampler.
///
/// Places are positions in an epoch's order; positions past its end are padding. A batch of all
/// ranks takes the next consecutive places; each rank takes every `ranks`-th of them.
class SampleSequence {
 public:
  struct Batch {
    std::size_t samples = 0;  // of each rank
    std::size_t padding = 0;  // of all ranks together
  };

  SampleSequence(EpochOrder order, std::uint64_t seed, bool drop_last, int rank, int ranks);

  std::size_t samples() const { return order_.samples; }
  std::int64_t epoch() const { return epoch_; }
  std::size_t consumed() const { return consumed_; }
  const std::optional<Batch>& last_batch() const { return last_batch_; }

  std::uint64_t seed() const { return seed_; }
  /// The epoch of the last iteration that began. Loaders' threads may ask.
  std::int64_t iterated_epoch() const { return iterated_epoch_; }

  void begin();
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size);
  Batch consume();
  void end_epoch();

  std::string state() const;
  void set_state(const std::string& text);

 private:
  struct Iteration {
    std::int64_t epoch;
    std::vector<std::size_t> order;
    std::size_t next;  // the place at which the next batch begins
    std::size_t end;   // of all places, with padding
  };

  void advance();
  /// The end of the places that the ranks get from `begin` on.
  std::size_t end_of_places(std::size_t begin) const;

  EpochOrder order_;
  std::uint64_t seed_;
  bool drop_last_;
  std::size_t rank_;
  std::size_t ranks_;

  std::int64_t epoch_ = 0;
  std::size_t consumed_ = 0;  // of that epoch
  std::optional<Iteration> iteration_;
  std::atomic<std::int64_t> iterated_epoch_ = 0;
  std::deque<Batch> unconsumed_;  // returned by next()
  std::optional<Batch> last_batch_;
};

/// The elements of a stream that belong to one rank, and how many of them it has consumed. See
/// StreamShard.
class StreamPosition {
 public:
  /// Throws InvalidArgument if `block` is 0.
  StreamPosition(std::size_t block, int rank, int ranks);

  bool takes(std::uint64_t element) const;
  std::uint64_t start() const { return start_; }
  std::int64_t epoch() const { return epoch_; }

  void consume(std::size_t elements) { consumed_ += elements; }
  void end_epoch();

  std::string state() const;
  void set_state(const std::string& text);

 private:
  std::uint64_t block_;
  std::uint64_t rank_;
  std::uint64_t ranks_;
  std::int64_t epoch_ = 0;
  std::uint64_t start_ = 0;     // the first element of the epoch, or of the rest of a resumed one
  std::uint64_t consumed_ = 0;  // by this rank, since then
};

}  // namespace kolo::extras

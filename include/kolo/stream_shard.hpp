#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "kolo/process_set.hpp"

namespace kolo::tensors {
class StreamPosition;
}

#pragma GCC visibility push(default)
namespace kolo {

/// Options of a StreamShard; the same on all ranks.
struct StreamShardOptions {
  std::size_t block = 1;              ///< elements in a row that one rank takes
  ProcessSet* process_set = nullptr;  ///< null: the world of Runtime::current()
};

/// Cuts a stream by rank: data that can only be read from its beginning on, and whose length nobody
/// knows. Every rank reads the whole of it, in the same order, and takes what this says:
///
///   kolo::StreamShard shard;
///   std::uint64_t element = 0;
///   for (Record record; stream.read(record); ++element) {
///     if (!shard.takes(element)) continue;
///     train(record);
///     shard.consume(1);
///   }
///   shard.end_epoch();
///
/// Of what is left where a run begins or resumes, rank r of N takes the blocks r, r + N, r + 2N …
/// The state counts the elements that all ranks together have consumed, so a resumed run takes
/// exactly the rest, at any number of ranks. In steps of `block` elements on each rank, those of a
/// step are N blocks in a row of the stream.
///
/// The ranks' last blocks need not be equally many: the ranks that have no more call
/// DistributedOptimizer::join() while the others still train, and all call end_epoch() after it.
///
/// Copies share one position: a data set that a loader reads ahead has one, the program another.
/// takes() may be called on a loader's threads meanwhile. Nothing here is collective.
class StreamShard {
 public:
  using Options = StreamShardOptions;

  /// @throws InvalidArgument if `block` is 0, or this rank is not in the process set
  explicit StreamShard(const Options& options = {});

  /// @param element its place in the stream, from 0
  /// @return whether it is for this rank, and was not consumed before the run was resumed
  bool takes(std::uint64_t element) const;
  /// @return the first element that was not consumed when the epoch was begun or resumed: a stream
  ///   that can seek is read from there
  std::uint64_t start() const;

  /// Counts elements that this rank's program has taken from its loader.
  void consume(std::size_t elements);
  /// Begins the next epoch, at the stream's beginning. Call it between two iterations.
  void end_epoch();

  /// @return the current epoch, from 0
  std::int64_t epoch() const;

  /// @return the position as JSON text, the same on all ranks that have consumed equally many: for
  ///   SaveOptions::extras
  /// @throws InvalidArgument within a block: another number of ranks could not resume there
  std::string state() const;
  /// Goes on where state() was called, at any number of ranks and any size of blocks. Call it
  /// between two iterations.
  /// @throws InvalidArgument if the text is damaged; the shard is then as before
  void set_state(const std::string& state);

 private:
  std::shared_ptr<tensors::StreamPosition> position_;
};

}  // namespace kolo
#pragma GCC visibility pop

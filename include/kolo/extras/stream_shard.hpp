#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "kolo/process_set.hpp"

namespace kolo::extras {
class StreamPosition;
}

#pragma GCC visibility push(default)
namespace kolo {

/// Options of a StreamShard; the same on all ranks.
struct StreamShardOptions {
  std::size_t block = 1;              ///< consecutive elements that one rank takes
  ProcessSet* process_set = nullptr;  ///< null: the world of Runtime::current()
};

/// Divides a stream between ranks: data that can only be read sequentially and whose length is
/// unknown. Every rank reads the whole stream, in the same order, and takes its own elements:
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
/// Of the elements that remain when a run begins or resumes, rank r of N takes the blocks r, r + N,
/// r + 2N … The state counts the elements that all ranks together have consumed, so a resumed run
/// takes exactly the rest, on any number of ranks. If each rank takes `block` elements per step, a
/// step consists of N consecutive blocks of the stream.
///
/// Ranks may have different numbers of blocks: ranks that have no more call
/// DistributedOptimizer::join() while the others still train, and all ranks then call end_epoch().
///
/// Copies share one position: give one to the data set that a loader prefetches from, and keep one
/// in the program. takes() may be called on a loader's threads at the same time. Nothing here is
/// collective.
class StreamShard {
 public:
  using Options = StreamShardOptions;

  /// @throws InvalidArgument if `block` is 0, or this rank is not in the process set
  explicit StreamShard(const Options& options = {});

  /// @param element index in the stream, from 0
  /// @return whether this rank takes the element, and it was not consumed before the run was
  ///   resumed
  bool takes(std::uint64_t element) const;
  /// @return the first element that was not consumed when the epoch began or was resumed; a stream
  ///   that can seek may be read from there
  std::uint64_t start() const;

  /// Counts elements that the program has taken from its loader on this rank.
  void consume(std::size_t elements);
  /// Begins the next epoch, at the stream's beginning. Call it between two iterations.
  void end_epoch();

  /// @return the current epoch, from 0
  std::int64_t epoch() const;

  /// @return the position as JSON text, the same on all ranks that have consumed equally many
  ///   elements: for SaveOptions::extras
  /// @throws InvalidArgument within a block, where another number of ranks could not resume
  std::string state() const;
  /// Resumes where state() was called, on any number of ranks and with any block size. Call it
  /// between two iterations.
  /// @throws InvalidArgument if the text is damaged; the shard is then unchanged
  void set_state(const std::string& state);

 private:
  std::shared_ptr<extras::StreamPosition> position_;
};

}  // namespace kolo
#pragma GCC visibility pop

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)
namespace kolo {

/// Memory that the ranks of a group share within a node: one segment per rank, visible to all.
///
/// A segment begins with the rank's stage counter, through which ranks wait for one another without
/// messages. The rest is plain memory, initialised to zeros, 64-byte aligned, of equal size on all
/// ranks. Each rank writes its own stage; the algorithm decides which bytes a rank may access at
/// which stage.
///
/// All ranks run the same operations on a window in the same order, so their stages advance alike.
/// An algorithm enters a stage after its last access to a segment, and the next algorithm begins
/// with `co_await window.all_reached(window.stage())`. From then on all segments are free; no
/// algorithm needs to wait at its end.
class SharedWindow {
 public:
  using StageCounter = std::atomic<std::uint64_t>;
  static_assert(StageCounter::is_always_lock_free);

  struct Segment {
    StageCounter* stage_counter;  ///< initially zero
    std::span<std::byte> bytes;
  };

  /// @param segments of all ranks, by rank
  /// @param memory keeps them alive
  SharedWindow(int rank, std::vector<Segment> segments, std::shared_ptr<const void> memory)
      : rank_(rank), segments_(std::move(segments)), memory_(std::move(memory)) {}
  SharedWindow(const SharedWindow&) = delete;  // stages are counted once
  SharedWindow& operator=(const SharedWindow&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(segments_.size()); }

  /// @return the bytes of `rank`'s segment after its stage counter
  std::span<std::byte> segment(int rank) const { return of(rank).bytes; }

  /// Enters the next stage. What this rank wrote before is visible to ranks that have awaited it.
  ///
  /// @return the stage entered
  std::uint64_t enter_stage() {
    of(rank_).stage_counter->store(++stage_, std::memory_order_release);
    return stage_;
  }

  /// @return the stage that this rank entered last
  std::uint64_t stage() const { return stage_; }

  /// Awaitable: `rank` has entered `stage` or a later one.
  auto reached(int rank, std::uint64_t stage) const {
    return Reached{of(rank).stage_counter, stage};
  }

  /// Awaitable: all ranks have entered `stage` or a later one.
  auto all_reached(std::uint64_t stage) const { return AllReached{segments_, stage}; }

  /// For traces, while this rank waits for others.
  ///
  /// @return the rank that is farthest behind this one; -1: none is
  int last_rank() const {
    int last = -1;
    std::uint64_t lowest = stage_;
    for (int rank = 0; rank < size(); ++rank) {
      const std::uint64_t stage = of(rank).stage_counter->load(std::memory_order_relaxed);
      if (stage >= lowest) continue;
      lowest = stage;
      last = rank;
    }
    return last;
  }

  /// @return bytes that algorithms on this rank have read from or written to other ranks' segments
  std::uint64_t bytes_moved() const { return bytes_moved_; }
  void count_moved(std::size_t bytes) { bytes_moved_ += bytes; }

 private:
  struct Reached {
    const StageCounter* counter;
    std::uint64_t stage;
    bool ready() const { return counter->load(std::memory_order_acquire) >= stage; }
  };
  struct AllReached {
    std::span<const Segment> missing;  // segments whose stage is not known to be reached
    std::uint64_t stage;
    bool ready() {
      while (!missing.empty() && Reached{missing.front().stage_counter, stage}.ready()) {
        missing = missing.subspan(1);
      }
      return missing.empty();
    }
  };

  const Segment& of(int rank) const { return segments_[static_cast<std::size_t>(rank)]; }

  int rank_;
  std::vector<Segment> segments_;
  std::shared_ptr<const void> memory_;
  std::uint64_t stage_ = 0;
  std::uint64_t bytes_moved_ = 0;
};

}  // namespace kolo
#pragma GCC visibility pop

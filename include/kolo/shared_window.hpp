#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kolo {

/// Memory that the ranks of one group share inside a node: a segment per rank, all visible to all.
///
/// Every segment starts with that rank's stage counter, by which ranks wait for one another without
/// messages; the rest is plain memory. Segments are zero at first, 64-byte aligned, of one size.
/// Each rank writes its own stage; who may read or write which bytes at which stage is up to the
/// algorithm. All ranks run the same operations on a window in the same order, so that the stages,
/// counted by each for itself, stay in step. An algorithm enters a stage after its last access to a
/// segment, and the next one starts with `co_await window.all_reached(window.stage())`: from then on
/// all segments are free, without a wait at the end.
class SharedWindow {
 public:
  virtual ~SharedWindow() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// The bytes of `rank`'s segment behind its stage counter.
  virtual std::span<std::byte> segment(int rank) = 0;

  /// Enters the next stage: all that this rank wrote before is visible to whoever sees it there.
  /// Returns the stage entered.
  std::uint64_t enter_stage() {
    stage_counter(rank()).store(++stage_, std::memory_order_release);
    return stage_;
  }

  /// The stage that this rank entered last.
  std::uint64_t stage() const { return stage_; }

  /// Awaitable: `rank` has entered `stage` or a later one.
  auto reached(int rank, std::uint64_t stage) { return Reached{&stage_counter(rank), stage}; }

  /// Awaitable: all ranks have entered `stage` or a later one.
  auto all_reached(std::uint64_t stage) { return AllReached{this, stage, 0}; }

  /// Bytes that this rank's algorithms read from or wrote to other ranks' segments so far.
  std::uint64_t bytes_moved() const { return bytes_moved_; }
  void count_moved(std::size_t bytes) { bytes_moved_ += bytes; }

 protected:
  using StageCounter = std::atomic<std::uint64_t>;
  static_assert(StageCounter::is_always_lock_free);

 private:
  struct Reached {
    const StageCounter* counter;
    std::uint64_t stage;
    bool ready() const { return counter->load(std::memory_order_acquire) >= stage; }
  };
  struct AllReached {
    SharedWindow* window;
    std::uint64_t stage;
    int next;  // all ranks below have been seen there
    bool ready() {
      while (next < window->size() && window->reached(next, stage).ready()) ++next;
      return next == window->size();
    }
  };

  virtual StageCounter& stage_counter(int rank) = 0;

  std::uint64_t stage_ = 0;
  std::uint64_t bytes_moved_ = 0;
};

}  // namespace kolo

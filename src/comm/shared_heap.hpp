#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/creator_process.hpp"
#include "base/mutex.hpp"
#include "comm/file_descriptor.hpp"
#include "comm/shared_memory.hpp"
#include "kolo/communicator.hpp"
#include "kolo/shared_window.hpp"
#include "kolo/task.hpp"

namespace kolo::comm {

/// Memory that each rank gives out from its own segment, without asking the others, who find it at
/// the same offset of their view of that segment.
///
/// Segments have room for more than is ever used: the system reserves memory when it is first given
/// out, so that there is an error and not a SIGBUS if it has none. What comes back is kept for the
/// next, since sizes recur: the memory grows to the most that has been in use at once, and goes
/// back to the system with the heap. A rank maps the segments, of all ranks, when it first gives
/// memory out.
class SharedHeap : public std::enable_shared_from_this<SharedHeap> {
 public:
  /// @param file of this rank's segment
  /// @param segments of all ranks, of equal size
  SharedHeap(int rank, FileDescriptor file, std::vector<SegmentAddress> segments);

  /// Aligned to pages, not initialized; keeps the heap alive. Null if the system has no memory or
  /// addresses for it, and in a forked child. Any thread.
  std::shared_ptr<std::byte> allocate(std::size_t bytes);

  /// Where memory lies in this rank's segment; none if it does not.
  std::optional<std::size_t> offset_of(std::span<const std::byte> memory) const;
  /// Once this rank has given memory out.
  std::byte* at(int rank, std::size_t offset) const {
    return mapped_.load(std::memory_order_acquire)->segment(rank).data() + offset;
  }

 private:
  std::size_t segment_bytes() const { return segments_.front().size_bytes - page_bytes(); }
  bool map() KOLO_REQUIRES(lock_);
  std::optional<std::size_t> take(std::size_t bytes) KOLO_REQUIRES(lock_);
  void give_back(std::size_t begin, std::size_t bytes);

  const int rank_;
  const FileDescriptor file_;
  const std::vector<SegmentAddress> segments_;
  const CreatorProcess creator_;
  Mutex lock_;
  std::shared_ptr<SharedWindow> window_ KOLO_GUARDED_BY(lock_);
  std::atomic<const SharedWindow*> mapped_{nullptr};  // it, for readers without the lock
  std::map<std::size_t, std::size_t> free_
      KOLO_GUARDED_BY(lock_);                        // begin to length; none adjacent
  std::size_t reserved_ KOLO_GUARDED_BY(lock_) = 0;  // from the segment's begin
};

/// Makes a heap among the ranks of `communicator`, as World::make_window makes a window. Together
/// their segments are as long as the machine's memory.
Task make_shared_heap(Communicator& communicator, int tag, std::shared_ptr<SharedHeap>& heap);

}  // namespace kolo::comm

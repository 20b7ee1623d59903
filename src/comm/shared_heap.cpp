#include "comm/shared_heap.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "kolo/error.hpp"

namespace kolo::comm {

SharedHeap::SharedHeap(int rank, FileDescriptor file, std::vector<SegmentAddress> segments)
    : rank_(rank), file_(std::move(file)), segments_(std::move(segments)) {}

bool SharedHeap::map() {
  if (window_ != nullptr) return true;
  try {
    window_ = map_window(rank_, segments_);
  } catch (const BackendError&) {  // too few addresses, or a rank has ended
    return false;
  }
  mapped_.store(window_.get(), std::memory_order_release);
  return true;
}

std::shared_ptr<std::byte> SharedHeap::allocate(std::size_t bytes) {
  if (!creator_.is_current() || bytes > segment_bytes()) return nullptr;
  bytes = whole_pages(std::max(bytes, std::size_t{1}));
  std::optional<std::size_t> begin;
  {
    const Lock lock(lock_);
    if (map()) begin = take(bytes);
  }
  if (!begin) return nullptr;
  return {at(rank_, *begin), [heap = shared_from_this(), begin = *begin, bytes](std::byte*) {
            heap->give_back(begin, bytes);
          }};
}

std::optional<std::size_t> SharedHeap::offset_of(std::span<const std::byte> memory) const {
  const SharedWindow* const window = mapped_.load(std::memory_order_acquire);
  if (window == nullptr) return std::nullopt;
  const std::span<std::byte> own = window->segment(rank_);
  // As numbers: the two may be different objects.
  const auto offset = reinterpret_cast<std::uintptr_t>(memory.data()) -
                      reinterpret_cast<std::uintptr_t>(own.data());
  if (offset >= own.size() || memory.size() > own.size() - offset) return std::nullopt;
  return offset;
}

/// The smallest free range that is long enough; else what is not reserved yet.
std::optional<std::size_t> SharedHeap::take(std::size_t bytes) {
  auto best = free_.end();
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    if (range->second < bytes) continue;
    if (best == free_.end() || range->second < best->second) best = range;
  }
  if (best != free_.end()) {
    const auto [begin, length] = *best;
    free_.erase(best);
    if (length > bytes) free_.emplace(begin + bytes, length - bytes);
    return begin;
  }
  std::size_t begin = reserved_;
  const auto last = free_.empty() ? free_.end() : std::prev(free_.end());
  if (last != free_.end() && last->first + last->second == reserved_) begin = last->first;
  if (bytes > segment_bytes() - begin) return std::nullopt;
  if (reserve(file_, page_bytes() + reserved_, begin + bytes - reserved_) != 0) {
    return std::nullopt;
  }
  if (begin < reserved_) free_.erase(last);
  reserved_ = begin + bytes;
  return begin;
}

void SharedHeap::give_back(std::size_t begin, std::size_t bytes) {
  if (!creator_.is_current()) return;
  const Lock lock(lock_);
  auto next = free_.upper_bound(begin);
  if (next != free_.end() && begin + bytes == next->first) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == begin) {
      before->second += bytes;
      return;
    }
  }
  free_.emplace(begin, bytes);
}

Task make_shared_heap(Communicator& communicator, int tag, std::shared_ptr<SharedHeap>& heap) {
  FileDescriptor file;
  std::vector<SegmentAddress> segments;
  co_await make_empty_segments(communicator, tag, file, segments);
  heap = std::make_shared<SharedHeap>(communicator.rank(), std::move(file), std::move(segments));
}

}  // namespace kolo::comm

#include "comm/shared_heap.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "comm/shared_memory.hpp"

namespace kolo::comm {

SharedHeap::SharedHeap(FileDescriptor file, std::shared_ptr<SharedWindow> window)
    : file_(std::move(file)), window_(std::move(window)) {}

std::shared_ptr<std::byte> SharedHeap::allocate(std::size_t bytes) {
  if (!creator_.is_current()) return nullptr;
  bytes = std::max((bytes + page_bytes() - 1) / page_bytes(), std::size_t{1}) * page_bytes();
  std::optional<std::size_t> begin;
  {
    const Lock lock(lock_);
    begin = take(bytes);
  }
  if (!begin) return nullptr;
  return {at(window_->rank(), *begin), [heap = shared_from_this(), begin = *begin,
                                        bytes](std::byte*) { heap->give_back(begin, bytes); }};
}

std::optional<std::size_t> SharedHeap::offset_of(std::span<const std::byte> memory) const {
  const std::span<std::byte> own = window_->segment(window_->rank());
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
  if (bytes > window_->segment(window_->rank()).size() - begin) return std::nullopt;
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
  std::shared_ptr<SharedWindow> window;
  FileDescriptor file;
  co_await make_empty_posix_window(communicator, tag, window, file);
  heap = std::make_shared<SharedHeap>(std::move(file), std::move(window));
}

}  // namespace kolo::comm

#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "comm/gpu/gpu.hpp"

namespace kolo::runtime {

/// Memory of a GPU that operations of one stream use one after another. A GPU frees memory only
/// when it is idle, so nothing is freed in a steady state. Any thread.
class ScratchPool {
 public:
  /// Returns at least `bytes` bytes. They return to the pool when their last owner releases them;
  /// the stream orders their next use after this one.
  std::shared_ptr<std::byte> take(comm::Gpu& gpu, std::size_t bytes) {
    std::shared_ptr<std::byte> memory;
    std::size_t size = bytes;
    {
      const std::lock_guard lock(free_->lock);
      const auto found = free_->blocks.lower_bound(bytes);
      // A small operation must not keep a large block.
      if (found != free_->blocks.end() && found->first <= 2 * bytes) {
        size = found->first;
        memory = std::move(found->second);
        free_->blocks.erase(found);
      }
    }
    if (memory == nullptr) memory = gpu.allocate(bytes);
    std::byte* const address = memory.get();
    return {address, [memory = std::move(memory), size, free = free_](std::byte*) mutable {
              const std::lock_guard lock(free->lock);
              if (!free->is_closed) free->blocks.emplace(size, std::move(memory));
            }};
  }

  /// Frees unused memory now, and the rest when it is returned.
  void close() {
    const std::lock_guard lock(free_->lock);
    free_->is_closed = true;
    free_->blocks.clear();
  }

 private:
  struct Free {
    std::mutex lock;
    std::multimap<std::size_t, std::shared_ptr<std::byte>> blocks;
    bool is_closed = false;
  };
  std::shared_ptr<Free> free_ = std::make_shared<Free>();
};

}  // namespace kolo::runtime

#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "comm/gpu/gpu.hpp"

namespace kolo::runtime {

/// Reuses events of one kind, so that programs in a steady state create none. Any thread.
class EventPool {
 public:
  using Make = std::shared_ptr<CUevent_st> (comm::Gpu::*)();
  explicit EventPool(Make make) : make_(make) {}

  /// Returns an event of `gpu`, which is the same GPU in every call. The event returns to the pool
  /// when its last owner releases it; streams that already wait for it are not affected.
  std::shared_ptr<CUevent_st> take(comm::Gpu& gpu) {
    std::shared_ptr<CUevent_st> event;
    {
      const std::lock_guard lock(free_->lock);
      if (!free_->events.empty()) {
        event = std::move(free_->events.back());
        free_->events.pop_back();
      }
    }
    if (event == nullptr) event = (gpu.*make_)();
    CUevent_st* const handle = event.get();
    return {handle, [event = std::move(event), free = free_](CUevent_st*) mutable {
              const std::lock_guard lock(free->lock);
              free->events.push_back(std::move(event));
            }};
  }

 private:
  struct Free {
    std::mutex lock;
    std::vector<std::shared_ptr<CUevent_st>> events;
  };
  Make make_;
  std::shared_ptr<Free> free_ = std::make_shared<Free>();
};

}  // namespace kolo::runtime

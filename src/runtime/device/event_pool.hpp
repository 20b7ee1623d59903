#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "comm/gpu/gpu.hpp"

namespace kolo::runtime {

/// Events of one kind that are used again, so that steady programs make none. Any thread.
class EventPool {
 public:
  using Make = std::shared_ptr<CUevent_st> (comm::Gpu::*)();
  explicit EventPool(Make make) : make_(make) {}

  /// An event of `gpu`, the same at every call; it comes back when the last owner lets go of it.
  /// Who waits for it on a stream by then has been given what it was recorded as.
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

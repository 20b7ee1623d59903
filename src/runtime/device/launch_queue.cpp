#include "runtime/device/launch_queue.hpp"

#include <algorithm>
#include <limits>

#include "kolo/error.hpp"

namespace kolo::runtime {

std::shared_ptr<LaunchTurn> LaunchQueue::announce() {
  const Lock lock(lock_);
  ++announced_;
  return std::make_shared<LaunchTurn>(*this);
}

std::shared_ptr<LaunchTurn> LaunchQueue::submit(int set, Deadline deadline,
                                                const std::string& what) {
  const Lock lock(lock_);
  while (announced_ > 0) {
    if (deadline.has_passed()) {
      throw TimeoutError(what +
                         ": operations by name that this rank submitted before have not started "
                         "in time, and ranks launch them on GPUs first. Submit both in one order "
                         "on all ranks, or raise the timeout (KOLO_TIMEOUT, "
                         "OperationOptions::timeout).");
    }
    none_announced_.wait_until(lock_, deadline.point());
  }
  return take_next(set, /*is_agreed=*/true);
}

std::shared_ptr<LaunchTurn> LaunchQueue::enter_world() {
  const Lock lock(lock_);
  ++world_;
  const Place place{.world = world_};
  last_ = std::max(last_, place);
  line_.insert(place);
  return std::make_shared<LaunchTurn>(*this, place, /*is_agreed=*/true);
}

std::shared_ptr<LaunchTurn> LaunchQueue::propose(int set) {
  const Lock lock(lock_);
  return take_next(set, /*is_agreed=*/false);
}

std::shared_ptr<LaunchTurn> LaunchQueue::take_next(int set, bool is_agreed) {
  last_ = {last_.world, last_.number + 1, set};
  line_.insert(last_);
  return std::make_shared<LaunchTurn>(*this, last_, is_agreed);
}

void LaunchQueue::lose_world() {
  const Lock lock(lock_);
  world_ = std::numeric_limits<std::size_t>::max();
}

std::shared_ptr<CUevent_st> LaunchQueue::last_launch() {
  const Lock lock(lock_);
  return last_launch_;
}

void LaunchQueue::set_last_launch(std::shared_ptr<CUevent_st> event) {
  const Lock lock(lock_);
  last_launch_.swap(event);
}

LaunchTurn::~LaunchTurn() {
  const Lock lock(queue_.lock_);
  if (queue_.line_.erase(place_) > 0 || --queue_.announced_ > 0) return;
  queue_.none_announced_.notify_all();
}

void LaunchTurn::agree(Proposal greatest) {
  const Lock lock(queue_.lock_);
  queue_.line_.erase(place_);
  place_ = {greatest.first, greatest.second, place_.set};
  queue_.line_.insert(place_);
  queue_.last_ = std::max(queue_.last_, place_);
  is_agreed_ = true;
}

bool LaunchTurn::ready() {
  const Lock lock(queue_.lock_);
  return is_agreed_ && *queue_.line_.begin() == place_ && place_.world <= queue_.world_;
}

}  // namespace kolo::runtime

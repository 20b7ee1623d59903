#include "kolo/handle.hpp"

#include <exception>
#include <utility>

#include "kolo/error.hpp"
#include "runtime/lane.hpp"

namespace kolo {

Handle::Handle(std::shared_ptr<runtime::Lane> lane,
               std::shared_ptr<runtime::Operation> operation)
    : lane_(std::move(lane)), operation_(std::move(operation)) {}

bool Handle::is_ready() const {
  if (operation_ == nullptr) {
    throw InvalidArgument("Handle::is_ready: the handle stands for no operation (moved from?)");
  }
  return operation_->is_done.load(std::memory_order_acquire);
}

void Handle::wait() { wait_for(std::chrono::nanoseconds::max()); }

bool Handle::wait_for(std::chrono::nanoseconds duration) {
  using Clock = runtime::Operation::Clock;
  if (operation_ == nullptr) {
    throw InvalidArgument("Handle::wait: the handle stands for no operation (moved from?)");
  }
  const auto now = Clock::now();
  const bool is_bounded = duration < Clock::time_point::max() - now;
  if (!lane_->wait(*operation_, is_bounded ? now + duration : Clock::time_point::max())) {
    return false;
  }
  if (operation_->error) std::rethrow_exception(operation_->error);
  return true;
}

}  // namespace kolo

#include "kolo/handle.hpp"

#include <utility>

#include "base/deadline.hpp"
#include "kolo/error.hpp"
#include "runtime/engine/engine.hpp"

namespace kolo {

Handle::Handle(std::shared_ptr<runtime::Engine> engine,
               std::shared_ptr<runtime::Operation> operation)
    : engine_(std::move(engine)), operation_(std::move(operation)) {}

runtime::Operation& Handle::operation() const {
  if (operation_ == nullptr) {
    throw InvalidArgument("Handle: it stands for no operation. Was it moved from?");
  }
  return *operation_;
}

bool Handle::is_ready() const { return engine_->poll(operation()); }

void Handle::wait() { wait(operation().device.stream); }

void Handle::wait(void* stream) {
  runtime::Operation& operation = this->operation();
  engine_->wait(operation, runtime::Operation::Clock::time_point::max());
  engine_->finish(operation, static_cast<comm::DeviceStream>(stream));
}

bool Handle::wait_for(std::chrono::nanoseconds duration) {
  return wait_for(duration, operation().device.stream);
}

bool Handle::wait_for(std::chrono::nanoseconds duration, void* stream) {
  runtime::Operation& operation = this->operation();
  if (!engine_->wait(operation, Deadline::after(duration).point())) return false;
  engine_->finish(operation, static_cast<comm::DeviceStream>(stream));
  return true;
}

void Handle::notify(std::function<void()> notice) const {
  engine_->notify(operation(), std::move(notice));
}

std::chrono::steady_clock::time_point Handle::started() const { return operation().started; }

std::chrono::steady_clock::time_point Handle::ended() const { return operation().ended; }

}  // namespace kolo

#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "base/intentional_leak.hpp"
#include "base/log.hpp"
#include "comm/gpu/device_communicator.hpp"

namespace kolo::runtime {

/// Aborts a communicator on a detached thread: NCCL may wait for a GPU or a peer that does not
/// respond.
class CommunicatorAbort {
 public:
  /// Call it once.
  void begin(std::shared_ptr<comm::DeviceCommunicator> communicator,
             const std::string& reason) noexcept {
    begun_at_ = Clock::now();
    *has_ended_ = false;
    try {
      std::thread([communicator, reason, has_ended = has_ended_] {
        communicator->abort(reason);
        *has_ended = true;
      }).detach();
    } catch (const std::exception& error) {
      *has_ended_ = true;
      KOLO_LOG(Error) << "abort on the GPU: " << error.what();
      leak_intentionally(std::move(communicator));
    }
  }
  /// Whether the abort is in progress and worth waiting for.
  bool is_in_progress() const { return !*has_ended_ && Clock::now() < begun_at_ + kLongest; }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kLongest{1};  // a slower abort ends with the process

  Clock::time_point begun_at_{};
  std::shared_ptr<std::atomic<bool>> has_ended_ = std::make_shared<std::atomic<bool>>(true);
};

}  // namespace kolo::runtime

#include "runtime/control/heartbeat_thread.hpp"

#include "base/current_exception.hpp"
#include "base/log.hpp"

namespace kolo::runtime {
namespace {

constexpr int kHeartbeatTag = 0;

}  // namespace

HeartbeatThread::HeartbeatThread(std::unique_ptr<Communicator> communicator,
                                 const std::vector<int>& neighbours,
                                 std::chrono::nanoseconds interval)
    : communicator_(std::move(communicator)), interval_(interval) {
  for (const int rank : neighbours) outgoing_[rank];
  thread_ = std::jthread([this](const std::stop_token& stop) { loop(stop); });
}

void HeartbeatThread::postpone() {
  const std::lock_guard lock(mutex_);
  is_postponed_ = true;
}

void HeartbeatThread::loop(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_up_.wait_for(lock, stop, interval_, [] { return false; });
    if (stop.stop_requested()) return;
    if (std::exchange(is_postponed_, false)) continue;
    try {
      send();
    } catch (...) {  // a neighbour that cannot be reached: it and this rank find out by silence
      KOLO_LOG(Warn) << "heartbeats end: " << text_of_current_exception();
      return;
    }
  }
}

void HeartbeatThread::send() {
  for (auto& [rank, transfer] : outgoing_) {
    if (transfer.ready()) transfer = communicator_->send({}, rank, kHeartbeatTag);
  }
}

std::uint64_t HeartbeatThread::received_from(int rank) {
  const std::lock_guard lock(mutex_);
  for (;;) {
    if (!incoming_) {
      const auto envelope = communicator_->probe(kHeartbeatTag);
      if (!envelope) break;
      incoming_.emplace(envelope->source,
                        communicator_->receive({}, envelope->source, kHeartbeatTag));
    }
    if (!incoming_->second.ready()) break;
    ++received_[incoming_->first];
    incoming_.reset();
  }
  return received_[rank];
}

}  // namespace kolo::runtime

#include "comm/deferred_communicator.hpp"

#include <algorithm>
#include <chrono>
#include <span>
#include <thread>
#include <utility>

#include "base/intentional_leak.hpp"
#include "comm/message_bounds.hpp"

namespace kolo::comm {

bool MessagingThread::serve() {
  if (!is_here()) return false;
  const Lock guard(lock_);
  bool has_progressed = false;
  for (DeferredCommunicator* const communicator : communicators_) {
    has_progressed |= communicator->serve();
  }
  return has_progressed;
}

void MessagingThread::add(DeferredCommunicator* communicator) {
  const Lock guard(lock_);
  communicators_.push_back(communicator);
}

void MessagingThread::remove(DeferredCommunicator* communicator) {
  const Lock guard(lock_);
  std::erase(communicators_, communicator);
}

namespace {

// How long a thread that abandons a receive waits for the messaging thread to cancel it.
constexpr auto kLongestCancel = std::chrono::milliseconds(100);
constexpr auto kPollInterval = std::chrono::microseconds(50);

}  // namespace

DeferredCommunicator::DeferredCommunicator(std::unique_ptr<Communicator> inner,
                                           MessagingThread& thread)
    : inner_(std::move(inner)), thread_(thread) {
  thread_.add(this);
}

DeferredCommunicator::~DeferredCommunicator() {
  thread_.remove(this);
  if (thread_.is_here()) return;
  for (Slot& slot : slots_) leak_intentionally(std::move(slot.transfer));
  for (Transfer& transfer : abandoned_) leak_intentionally(std::move(transfer));
  leak_intentionally(std::move(inner_));
}

Transfer DeferredCommunicator::send(std::span<const std::byte> data, int destination, int tag) {
  check_message(*this, data.size(), destination, tag);
  const Lock guard(lock_);
  bytes_sent_ += data.size();
  return add([=](Communicator& inner) { return inner.send(data, destination, tag); }, destination,
             false);
}

Transfer DeferredCommunicator::receive(std::span<std::byte> data, int source, int tag) {
  check_message(*this, data.size(), source, tag);
  const Lock guard(lock_);
  return add([=](Communicator& inner) { return inner.receive(data, source, tag); }, source, true);
}

Transfer DeferredCommunicator::add(Start start, int peer, bool is_receive) {
  if (free_.empty()) {
    free_.push_back(slots_.size());
    slots_.emplace_back();
  }
  const std::uint64_t token = free_.back();
  free_.pop_back();
  Slot& slot = slots_[token];
  slot = {.state = Slot::State::Queued,
          .start = std::move(start),
          .peer = peer,
          .is_receive = is_receive};
  queued_.push_back(token);
  if (is_receive) {  // a previous give_up_receives() must not apply to it
    gives_up_ = false;
    under_way_.reset();
  }
  if (thread_.is_here()) {
    start_queued();
  } else {
    has_work_ = true;
  }
  return {*this, token};
}

void DeferredCommunicator::start_queued() {
  for (const std::uint64_t token : queued_) start(slots_[token]);
  queued_.clear();
}

/// The transfer reports errors, as with a communicator that any thread may use.
void DeferredCommunicator::start(Slot& slot) {
  try {
    slot.transfer = slot.start(*inner_);
    slot.state = Slot::State::Started;
  } catch (...) {
    slot.error = std::current_exception();
    slot.state = Slot::State::Ended;
  }
  slot.start = nullptr;
}

/// Tests the transfer. For the messaging thread only.
bool DeferredCommunicator::has_ended(Slot& slot) {
  if (slot.state == Slot::State::Ended) return true;
  try {
    if (!slot.transfer.ready()) return false;
  } catch (...) {
    slot.error = std::current_exception();
  }
  slot.state = Slot::State::Ended;
  return true;
}

bool DeferredCommunicator::test(std::uint64_t token) {
  const Lock guard(lock_);
  Slot& slot = slots_[token];
  if (thread_.is_here()) {
    start_queued();
    if (!has_ended(slot)) return false;
  } else if (slot.state != Slot::State::Ended) {
    slot.is_awaited = true;
    has_work_ = true;
    return false;
  }
  const std::exception_ptr error = slot.error;
  release(token);
  if (error) std::rethrow_exception(error);
  return true;
}

void DeferredCommunicator::release(std::uint64_t token) {
  slots_[token] = {};
  free_.push_back(token);
}

std::optional<Communicator::Envelope> DeferredCommunicator::probe(int tag) {
  check_message(*this, 0, rank(), tag);
  const Lock guard(lock_);
  const auto found = probes_.find(tag);
  if (found != probes_.end() && found->second) {
    const std::optional<Envelope> envelope = found->second;
    probes_.erase(found);
    return envelope;
  }
  if (thread_.is_here()) {
    start_queued();
    return inner_->probe(tag);
  }
  probes_.try_emplace(tag);
  has_work_ = true;
  return std::nullopt;
}

bool DeferredCommunicator::serve() {
  if (!has_work_.exchange(false)) return false;
  const Lock guard(lock_);
  bool has_progressed = !queued_.empty() || !abandoned_.empty();
  start_queued();
  abandoned_.clear();
  if (gives_up_) give_up_started_receives();
  bool has_more = false;
  for (Slot& slot : slots_) {
    if (slot.state != Slot::State::Started || !slot.is_awaited || slot.is_given_up) continue;
    (has_ended(slot) ? has_progressed : has_more) = true;
  }
  for (auto& [tag, envelope] : probes_) {
    if (envelope) continue;
    envelope = inner_->probe(tag);
    (envelope ? has_progressed : has_more) = true;
  }
  if (has_more) has_work_ = true;
  return has_progressed;
}

// --- after a failure ---

void DeferredCommunicator::give_up_queued_receives() {
  std::erase_if(queued_, [&](std::uint64_t token) KOLO_REQUIRES(lock_) {
    Slot& slot = slots_[token];
    if (!slot.is_receive) return false;
    slot.start = nullptr;
    slot.state = Slot::State::Ended;
    return true;
  });
}

void DeferredCommunicator::give_up_started_receives() {
  under_way_ = inner_->give_up_receives();
  gives_up_ = false;
  for (Slot& slot : slots_) slot.is_given_up = slot.is_receive;
}

Communicator::UnderWay DeferredCommunicator::list_started() const {
  UnderWay under_way;
  for (const Slot& slot : slots_) {
    if (slot.state != Slot::State::Started && slot.state != Slot::State::Queued) continue;
    std::vector<int>& ranks = slot.is_receive ? under_way.from : under_way.to;
    if (std::ranges::find(ranks, slot.peer) == ranks.end()) ranks.push_back(slot.peer);
  }
  return under_way;
}

Communicator::UnderWay DeferredCommunicator::give_up_receives() {
  const Lock guard(lock_);
  give_up_queued_receives();
  if (thread_.is_here()) {
    start_queued();
    give_up_started_receives();
    return *std::exchange(under_way_, std::nullopt);
  }
  if (const auto known = std::exchange(under_way_, std::nullopt)) return *known;
  gives_up_ = true;
  has_work_ = true;
  return list_started();
}

void DeferredCommunicator::abandon(std::uint64_t token) noexcept {
  const Lock guard(lock_);
  Slot& slot = slots_[token];
  std::erase(queued_, token);
  const bool must_wait = slot.state == Slot::State::Started && slot.is_receive;
  Transfer transfer = std::move(slot.transfer);
  release(token);
  if (thread_.is_here()) return;  // the destructor of `transfer` abandons it
  abandoned_.push_back(std::move(transfer));
  has_work_ = true;
  const auto give_up_at = std::chrono::steady_clock::now() + kLongestCancel;
  while (must_wait && !abandoned_.empty() && std::chrono::steady_clock::now() < give_up_at) {
    lock_.unlock();
    std::this_thread::sleep_for(kPollInterval);
    lock_.lock();
  }
}

}  // namespace kolo::comm

#include "runtime/protocol/pending_requests.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace kolo::runtime {

void PendingRequests::add(PendingRequest request) {
  const std::string& name = request.request->name;
  PendingRequest& added = by_name_[name] = std::move(request);
  by_use_[added.use] = &added;
  if (added.bit) {
    index_by_bit(added, *added.bit);
    ready_.set(*added.bit);
  } else {
    ++unknown_count_;
    unreported_[added.use] = &added;
  }
  next_timer_ = std::min({next_timer_, added.deadline, added.stall_at});
}

void PendingRequests::remove(const PendingRequest& request) {
  const SharedRequest kept = request.request;  // its name outlives the entry
  if (request.bit) {
    clear_bit(*request.bit);
  } else if (!request.is_expired) {
    --unknown_count_;
  }
  unreported_.erase(request.use);
  if (request.is_expired) --expired_count_;
  if (request.is_stalled) --stalled_count_;
  by_use_.erase(request.use);
  by_name_.erase(kept->name);
}

const PendingRequest* PendingRequests::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &found->second;
}

const PendingRequest* PendingRequests::at(int bit) const {
  const auto index = static_cast<std::size_t>(bit);
  return index < by_bit_.size() ? by_bit_[index] : nullptr;
}

void PendingRequests::mark_awaited(UseId use) {
  if (const auto found = by_use_.find(use); found != by_use_.end()) {
    found->second->is_awaited = true;
  }
}

void PendingRequests::mark_reported() {
  if (has_stalled()) {
    for (auto& [name, request] : by_name_) request.is_stalled = false;
  }
  stalled_count_ = 0;
  unreported_.clear();
}

void PendingRequests::check_timers(Time now) {
  if (now < next_timer_) return;
  next_timer_ = kNever;
  for (auto& [name, request] : by_name_) {
    if (request.is_expired) continue;
    if (request.deadline <= now) {
      expire(request);
      continue;
    }
    if (request.stall_at <= now) {
      request.stall_at = kNever;
      request.is_stalled = true;
      ++stalled_count_;
      if (!request.bit) unreported_[request.use] = &request;
    }
    next_timer_ = std::min({next_timer_, request.deadline, request.stall_at});
  }
}

/// Rule 10: later headers omit the request; a header posted already may still let it run.
void PendingRequests::expire(PendingRequest& request) {
  request.is_expired = true;
  ++expired_count_;
  if (request.is_stalled) --stalled_count_;
  request.is_stalled = false;
  if (request.bit) {
    ready_.reset(*request.bit);
  } else {
    --unknown_count_;
    unreported_[request.use] = &request;
  }
}

void PendingRequests::assign_bit(int bit, const SharedRequest& request) {
  const auto found = by_name_.find(request->name);
  if (found == by_name_.end() || found->second.request != request) return;
  PendingRequest& pending = found->second;
  pending.bit = bit;
  pending.request = request;
  index_by_bit(pending, bit);
  unreported_.erase(pending.use);
  if (pending.is_expired) return;
  --unknown_count_;
  ready_.set(bit);
}

void PendingRequests::withdraw_bit(int bit) {
  const auto index = static_cast<std::size_t>(bit);
  if (index >= by_bit_.size() || by_bit_[index] == nullptr) return;
  PendingRequest& pending = *by_bit_[index];
  clear_bit(bit);
  pending.bit.reset();
  unreported_[pending.use] = &pending;
  if (!pending.is_expired) ++unknown_count_;
}

Bits PendingRequests::unannounced() const { return ready_ - announced_; }

void PendingRequests::begin_announcement() { announcing_ = ready_; }

void PendingRequests::end_announcement() { announced_ = std::exchange(announcing_, {}); }

void PendingRequests::index_by_bit(PendingRequest& request, int bit) {
  const auto index = static_cast<std::size_t>(bit);
  if (by_bit_.size() <= index) by_bit_.resize(index + 1);
  by_bit_[index] = &request;
}

void PendingRequests::clear_bit(int bit) {
  by_bit_[static_cast<std::size_t>(bit)] = nullptr;
  ready_.reset(bit);
  announced_.reset(bit);
  announcing_.reset(bit);
}

}  // namespace kolo::runtime

#include "runtime/protocol/coordinator.hpp"

#include <algorithm>

#include "base/deadline.hpp"

namespace kolo::runtime {
Coordinator::Coordinator(Options options)
    : options_(std::move(options)),
      tree_(options_.rank, static_cast<int>(options_.set.world_ranks.size()), options_.tree_width) {
  // Alone, whatever is pending can run: there is nobody to be patient for.
  if (options_.set.world_ranks.size() == 1) options_.patience = Time{0};
}

void Coordinator::submit(UseId use, const Request& request, Time now, Time deadline) {
  // Rule 10: an error that the other ranks have for this use comes before anything else.
  if (std::optional<Failure> failure = deferred_errors_.take(request.name)) {
    actions_.failed.push_back({use, std::move(*failure)});
    return;
  }
  if (closed_) {
    actions_.failed.push_back({use, closing_failure(describe(request))});
    return;
  }
  Pending& pending = pending_[request.name];
  pending.bit = table_.find(request);
  pending.use = use;
  pending.submitted = now;
  pending.deadline = deadline;
  if (options_.stall_warn.count() > 0) pending.stall_at = later(now, options_.stall_warn);
  by_use_[use] = &pending;
  if (pending.bit < 0) {
    pending.request = std::make_shared<const Request>(request);
    count_unknown(pending, 1);
  } else {
    pending.request = table_.at(pending.bit);
    if (by_bit_.size() <= static_cast<std::size_t>(pending.bit)) {
      by_bit_.resize(static_cast<std::size_t>(pending.bit) + 1);
    }
    by_bit_[static_cast<std::size_t>(pending.bit)] = &pending;
    ready_.set(pending.bit);
  }
  next_clock_ = std::min({next_clock_, pending.deadline, pending.stall_at});
}

void Coordinator::wait_for(UseId use) {
  if (const auto found = by_use_.find(use); found != by_use_.end()) {
    found->second->is_awaited = true;
  }
}

void Coordinator::join(UseId use) {
  if (closed_) {
    actions_.failed.push_back({use, closing_failure("join")});
    return;
  }
  join_ = use;
  deferred_errors_.clear();  // rule 9: the uses they stand for are those this rank joins instead of
}

void Coordinator::shut_down() { is_shutting_down_ = true; }

void Coordinator::on_wake_up_request(std::uint64_t exchange) {
  highest_wake_up_request_ = std::max(highest_wake_up_request_, exchange);
}

Coordinator::Actions Coordinator::decide(Time now) {
  if (!closed_) {
    look_at_clock(now);
    if (!negotiation_) {
      // Rules 4, 5, 3 and 9, in this order: a cause asks, the others only post.
      const bool is_cause = !has_requested_wake_up_ && has_cause(now);
      if (!has_posted_ && (is_cause || prediction_is_complete() ||
                           highest_wake_up_request_ >= exchange_ || join_.has_value())) {
        post();
      }
      if (is_cause && highest_wake_up_request_ < exchange_) {
        actions_.wake_up_request = exchange_;
        ++counters_.wake_up_requests;
      }
      has_requested_wake_up_ |= is_cause;
    }
    watch_for_silence(now);
  }
  return std::exchange(actions_, {});
}

/// Marks what has been pending for too long. Looks at every request only when one is due.
void Coordinator::look_at_clock(Time now) {
  if (now < next_clock_) return;
  next_clock_ = kNever;
  for (auto& [name, pending] : pending_) {
    if (pending.is_expired) continue;
    if (pending.deadline <= now) {
      expire(pending);
      continue;
    }
    if (pending.stall_at <= now) {
      pending.stall_at = kNever;
      pending.is_stalled = true;
      ++stalled_count_;
    }
    next_clock_ = std::min({next_clock_, pending.deadline, pending.stall_at});
  }
}

/// Rule 10: it leaves later headers; one that is posted already may still let it run.
void Coordinator::expire(Pending& pending) {
  pending.is_expired = true;
  ++expired_count_;
  if (pending.is_stalled) --stalled_count_;
  pending.is_stalled = false;
  if (pending.bit < 0) {
    count_unknown(pending, -1);
  } else {
    ready_.reset(pending.bit);
  }
}

bool Coordinator::prediction_is_complete() const {
  const History::Composition predicted = history_.predict();
  return predicted != History::kNone && ready_.contains(history_.set_of(predicted));
}

void Coordinator::count_unknown(const Pending& pending, int by) {
  unknown_count_ += by;
  if (!pending.was_reported) unreported_count_ += by;
}

/// Whether all unknown requests wait for bits, and another negotiation would give them none.
bool Coordinator::lacks_bits() const {
  return unreported_count_ == 0 && blocked_.count() >= static_cast<int>(options_.table.bits);
}

/// Rule 4, with rule 5's exception.
bool Coordinator::has_cause(Time now) const {
  if ((unknown_count_ > 0 && !lacks_bits()) || expired_count_ > 0 || stalled_count_ > 0 ||
      is_shutting_down_ || (join_ && !join_is_announced_)) {
    return true;
  }
  const Bits news = ready_ - announced_;
  if (unknown_count_ > 0 && !news.none()) return true;  // what waits for their bits is not patient
  const bool is_predicted = prediction_is_complete();
  bool is_cause = false;
  news.for_each([&](int bit) {
    const Pending& pending = *by_bit_[static_cast<std::size_t>(bit)];
    is_cause |= pending.is_awaited && !is_predicted;
    is_cause |= counts_patience(bit) && later(pending.submitted, options_.patience) <= now;
  });
  return is_cause;
}

/// Whether this news becomes a cause with age. Once this rank has posted, as it does at once where
/// the prediction is complete, patience is up to those who have not: if all have the tensor, it is
/// news to one of them, or they have shown it; then it is in W and counts here all the same. Unless
/// it is all that is predicted: whoever has that posts anyway.
bool Coordinator::counts_patience(int bit) const {
  if (!has_posted_ && !prediction_is_complete()) return true;
  if (!blocked_.test(bit)) return false;
  const History::Composition predicted = history_.predict();
  if (table_.ambiguous().test(bit) || predicted == History::kNone) return true;
  const std::vector<int>& bits = history_.bits_of(predicted);
  return bits.size() != 1 || bits.front() != bit;
}

Header Coordinator::make_header() const {
  Header header;
  header.exchange = exchange_;
  header.has_unknown = unknown_count_ > 0;
  header.has_expired = expired_count_ > 0;
  header.has_stalled = stalled_count_ > 0;
  if (join_) header.joined.set(options_.rank);
  if (is_shutting_down_) header.shutdown_rank = options_.rank;
  header.own = ready_;
  header.ready = ready_;
  if (join_) {
    Bits pending_names;
    for (const auto& [name, pending] : pending_) pending_names |= table_.bits_of(name);
    header.ready |= table_.all() - pending_names;
  }
  return header;
}

void Coordinator::post() {
  announcing_ = ready_;
  actions_.post = make_header();
  join_is_announced_ = join_.has_value();
  has_posted_ = true;
}

/// Where a deadline or a shutdown presses, ranks that do not answer are not waited for forever.
void Coordinator::watch_for_silence(Time now) {
  const bool presses = (expired_count_ > 0 || is_shutting_down_) && !closed_;
  if (!presses) {
    silent_since_ = kNever;
  } else if (silent_since_ == kNever) {
    silent_since_ = now;
  } else if (now >= silence_limit()) {
    actions_.find_silent = true;
    silent_since_ = now;
  }
}

Time Coordinator::silence_limit() const {
  return silent_since_ == kNever ? kNever : later(silent_since_, options_.lost_after);
}

Time Coordinator::next_time() const {
  if (closed_) return kNever;
  Time next = std::min(next_clock_, silence_limit());
  if (!negotiation_ && !has_requested_wake_up_) {
    (ready_ - announced_).for_each([&](int bit) {
      const Time submitted = by_bit_[static_cast<std::size_t>(bit)]->submitted;
      if (counts_patience(bit)) next = std::min(next, later(submitted, options_.patience));
    });
  }
  return next;
}

}  // namespace kolo::runtime

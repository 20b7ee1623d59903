#include "runtime/protocol/coordinator.hpp"

#include <algorithm>

#include "base/deadline.hpp"

namespace kolo::runtime {

Coordinator::Coordinator(Options options)
    : options_(std::move(options)),
      tree_(options_.rank, size(), options_.tree_width),
      judge_(options_.table, options_.set) {
  // A single rank can run everything that is pending, without patience.
  if (size() == 1) options_.patience = Time{0};
}

// --- events ---

void Coordinator::submit(UseId use, const Request& request, Time now, Time deadline) {
  // Rule 10: an error that the other ranks have for this use takes precedence.
  if (std::optional<Failure> failure = deferred_errors_.take(request.name)) {
    actions_.failed.push_back({use, std::move(*failure)});
    return;
  }
  if (closed_) {
    actions_.failed.push_back({use, closing_failure(describe(request))});
    return;
  }
  PendingRequest pending;
  pending.use = use;
  pending.bit = table_.find(request);
  pending.request = pending.bit ? table_.at(*pending.bit) : SharedRequest(request);
  pending.submitted = now;
  pending.deadline = deadline;
  if (options_.stall_warn.count() > 0) pending.stall_at = later(now, options_.stall_warn);
  pending_.add(std::move(pending));
}

void Coordinator::wait_for(UseId use) { pending_.mark_awaited(use); }

void Coordinator::join(UseId use) {
  if (closed_) {
    actions_.failed.push_back({use, closing_failure("join")});
    return;
  }
  joins_.own = use;
  deferred_errors_.clear();  // rule 9: they stand for uses that this rank skips by joining
}

void Coordinator::shut_down(Leaving how) { leaving_ = how; }

void Coordinator::on_wake_up_request(std::uint64_t exchange) {
  highest_wake_up_request_ = std::max(highest_wake_up_request_, exchange);
}

// --- decisions ---

Coordinator::Actions Coordinator::decide(Time now) {
  if (!closed_) {
    pending_.check_timers(now);
    if (!is_negotiating()) {
      // Rules 4, 5, 3 and 9, in this order: the first also wakes the others.
      const bool wakes = !exchange_.has_requested_wake_up && has_reason_to_wake(now);
      const bool is_woken = highest_wake_up_request_ >= exchange_.number;
      if (!exchange_.has_posted &&
          (wakes || prediction_is_complete() || is_woken || joins_.own.has_value())) {
        post();
      }
      if (wakes && !is_woken) {
        actions_.wake_up_request = exchange_.number;
        ++counters_.wake_up_requests;
      }
      exchange_.has_requested_wake_up |= wakes;
    }
    watch_for_silence(now);
  }
  return std::exchange(actions_, {});
}

bool Coordinator::prediction_is_complete() const {
  const History::Composition predicted = history_.predict();
  return predicted != History::kNone && pending_.ready().contains(history_.set_of(predicted));
}

/// Whether all unknown requests wait for bits, and another negotiation would give them none.
bool Coordinator::lacks_bits() const {
  return !pending_.has_unreported() && blocked_.count() >= static_cast<int>(options_.table.bits);
}

/// Rule 4, with rule 5's exception.
bool Coordinator::has_reason_to_wake(Time now) const {
  if ((pending_.has_unknown() && !lacks_bits()) || pending_.has_expired() ||
      pending_.has_stalled() || leaving_ || (joins_.own && !joins_.is_announced)) {
    return true;
  }
  const Bits unannounced = pending_.unannounced();
  if (pending_.has_unknown() && !unannounced.none()) return true;  // others wait for their bits
  const bool is_predicted = prediction_is_complete();
  bool has_reason = false;
  unannounced.for_each([&](int bit) {
    const PendingRequest& pending = *pending_.at(bit);
    has_reason |= pending.is_awaited && !is_predicted;
    has_reason |= wakes_after_patience(bit) && later(pending.submitted, options_.patience) <= now;
  });
  return has_reason;
}

/// Whether this unannounced request wakes the others once it is older than the patience.
///
/// After this rank has posted, which it does immediately when the prediction is complete, patience
/// is up to the ranks that have not. If all ranks have the tensor, either it is unannounced on such
/// a rank, or all have announced it. In the second case it is blocked and counts here too, unless
/// it alone is predicted: every rank that has it posts anyway.
bool Coordinator::wakes_after_patience(int bit) const {
  if (!exchange_.has_posted && !prediction_is_complete()) return true;
  if (!blocked_.test(bit)) return false;
  const History::Composition predicted = history_.predict();
  if (table_.ambiguous().test(bit) || predicted == History::kNone) return true;
  const std::vector<int>& bits = history_.bits_of(predicted);
  return bits.size() != 1 || bits.front() != bit;
}

Header Coordinator::make_header() const {
  Header header;
  header.exchange = exchange_.number;
  header.has_unknown = pending_.has_unknown();
  header.has_expired = pending_.has_expired();
  header.has_stalled = pending_.has_stalled();
  if (leaving_) header.shutdown_rank = options_.rank;
  if (leaving_ == Leaving::ByException) header.thrower_rank = options_.rank;
  header.own = pending_.ready();
  header.ready = pending_.ready();
  if (joins_.own) {
    header.joined.set(options_.rank);
    Bits pending_names;
    for (const auto& [name, pending] : pending_) pending_names |= table_.bits_of(name);
    header.ready |= table_.all() - pending_names;
  }
  return header;
}

void Coordinator::post() {
  pending_.begin_announcement();
  actions_.post = make_header();
  joins_.is_announced = joins_.own.has_value();
  exchange_.has_posted = true;
}

/// Limits the wait for silent ranks after a deadline or during a shutdown.
void Coordinator::watch_for_silence(Time now) {
  if (!pending_.has_expired() && !leaving_) {
    silent_since_ = kNever;
  } else if (silent_since_ == kNever) {
    silent_since_ = now;
  } else if (now >= silence_limit()) {
    actions_.find_silent = true;
    silent_since_ = now;
  }
}

Time Coordinator::silence_limit() const {
  if (silent_since_ == kNever) return kNever;
  return later(silent_since_, leaving_ ? options_.lost_in_shutdown_after : options_.lost_after);
}

Time Coordinator::next_time() const {
  if (closed_) return kNever;
  Time next = std::min(pending_.next_timer(), silence_limit());
  if (!is_negotiating() && !exchange_.has_requested_wake_up) {
    pending_.unannounced().for_each([&](int bit) {
      const Time submitted = pending_.at(bit)->submitted;
      if (wakes_after_patience(bit)) next = std::min(next, later(submitted, options_.patience));
    });
  }
  return next;
}

}  // namespace kolo::runtime

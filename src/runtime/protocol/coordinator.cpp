#include "runtime/protocol/coordinator.hpp"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <limits>
#include <utility>
#include <variant>
#include <vector>

#include "base/deadline.hpp"
#include "base/text.hpp"

namespace kolo::runtime {

void DeferredErrors::add(const std::string& name, const Failure& failure) {
  std::deque<Entry>& queue = by_name_[name];
  if (!queue.empty() && queue.back()->failure == failure) {
    ++queue.back()->uses;
    return;
  }
  all_.push_back({name, failure, 1});
  queue.push_back(std::prev(all_.end()));
  if (all_.size() > capacity_) remove_first(by_name_.find(all_.front().name));
}

std::optional<Failure> DeferredErrors::take(const std::string& name) {
  const auto of_name = by_name_.find(name);
  if (of_name == by_name_.end()) return std::nullopt;
  DeferredError& next = *of_name->second.front();
  std::optional<Failure> failure = next.failure;
  if (--next.uses == 0) remove_first(of_name);
  return failure;
}

void DeferredErrors::remove_first(
    std::unordered_map<std::string, std::deque<Entry>>::iterator of_name) {
  all_.erase(of_name->second.front());
  of_name->second.pop_front();
  if (of_name->second.empty()) by_name_.erase(of_name);
}

void DeferredErrors::clear() {
  all_.clear();
  by_name_.clear();
}

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

std::optional<int> PendingRequests::bit_of(UseId use) const {
  const auto found = by_use_.find(use);
  return found == by_use_.end() ? std::nullopt : found->second->bit;
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

Coordinator::Coordinator(Options options)
    : options_(std::move(options)),
      tree_(options_.rank, size(), options_.tree_width),
      judge_(options_.table, options_.set) {
  // A single rank can run everything that is pending, without patience.
  if (size() == 1) options_.patience = Time{0};
}

// --- events ---

void Coordinator::submit(UseId use, const Request& request, Time now, Time deadline,
                         std::optional<Time> submitted) {
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
  newest_ = std::max(newest_, submitted.value_or(now).count());
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
  const Composition* const predicted = history_.predict();
  return predicted != nullptr && pending_.ready().contains(predicted->set);
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
  const Composition* const predicted = history_.predict();
  if (table_.ambiguous().test(bit) || predicted == nullptr) return true;
  return predicted->bits != std::vector{bit};
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
  if (newest_ != Newest::kNever) {
    header.newest = {newest_ + options_.to_world_clock.count(), options_.rank};
  }
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
  newest_shown_ = newest_;
  actions_.post = make_header();
  joins_.is_announced = joins_.own.has_value();
  exchange_.has_posted = true;
}

/// Limits the wait for silent ranks at a deadline, until which they may have been silent for long,
/// and during a shutdown.
void Coordinator::watch_for_silence(Time now) {
  if (!pending_.has_expired() && !leaving_) {
    silent_since_ = kNever;
    return;
  }
  if (silent_since_ == kNever) {
    silent_since_ = now;
    for (const auto& [name, request] : pending_) {
      const bool counts = request.is_expired && !leaving_;
      if (counts) silent_since_ = std::min(silent_since_, request.submitted);
    }
  }
  if (now < silence_limit()) return;
  actions_.find_silent = true;
  silent_since_ = now;
}

Time Coordinator::silence_limit() const {
  if (silent_since_ == kNever) return kNever;
  return later(silent_since_, options_.lost_after);
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

// --- the outcome of an exchange ---
// Every rank computes the same function of the same state.

void Coordinator::on_headers(const Header& merged) {
  if (closed_) return;
  (merged.joined - joins_.ranks).for_each([&](int rank) { joins_.last_rank = rank; });
  joins_.ranks = merged.joined;
  const Bits conflicts = conflicting(merged.own);
  const Bits runnable = (merged.own & merged.ready) - conflicts;
  if (runnable.none()) ++counters_.fruitless_exchanges;
  note_newest(merged, !runnable.none());
  run(runnable);
  blocked_.clear();
  const Bits left = merged.own - runnable;
  left.for_each([&](int bit) { blocked_ |= table_.bits_of(table_.at(bit)->name); });

  if (merged.shutdown_rank) {
    next_exchange();
    closed_by_ = merged.thrower_rank ? merged.thrower_rank : merged.shutdown_rank;
    close(ErrorKind::Shutdown, describe_shutdown(merged));
    return;
  }
  // Rule 9: operations that ranks submitted before they joined complete or fail before the join.
  const bool is_left = !left.none() || merged.has_unknown || merged.has_expired;
  const bool have_all_joined = joins_.ranks.count() == size();
  if (have_all_joined && !is_left) complete_join();
  if (merged.has_unknown || merged.has_expired || merged.has_stalled || !conflicts.none()) {
    begin_negotiation(merged);
  } else {
    next_exchange();
  }
}

void Coordinator::note_newest(const Header& merged, bool has_run) {
  constexpr std::int64_t kLatest = std::numeric_limits<std::int64_t>::max() / 2;
  const auto& [at, rank] = merged.newest;
  last_.reset();
  const bool is_sane = at > -kLatest && at < kLatest;  // another process may have damaged it
  if (rank >= 0 && is_sane) last_.emplace(rank, Time{at} - options_.to_world_clock);
  if (has_run && newest_ == newest_shown_) newest_ = Newest::kNever;
}

/// Bits shown under a name that was shown with several requests.
Bits Coordinator::conflicting(const Bits& shown) const {
  Bits conflicts;
  (shown & table_.ambiguous()).for_each([&](int bit) {
    Bits others = table_.bits_of(table_.at(bit)->name) & shown;
    others.reset(bit);
    if (!others.none()) conflicts.set(bit);
  });
  return conflicts;
}

/// Rule 6: batches that ran before come first, predicted ones ahead of the others; then new ones.
void Coordinator::run(Bits runnable) {
  bool found = true;
  while (found && !runnable.none()) {
    const Composition* const predicted = history_.predict();
    found = predicted != nullptr && runnable.contains(predicted->set);
    if (found) {
      run_batch(*predicted, runnable);
      continue;
    }
    const Bits rest = runnable;
    rest.for_each([&](int bit) {
      if (found || !runnable.test(bit)) return;
      const Composition* const known = history_.largest_within(runnable, bit);
      if (known == nullptr) return;
      run_batch(*known, runnable);
      found = true;
    });
  }
  while (!runnable.none()) run_batch(*fuse(runnable), runnable);
}

/// A new batch: the lowest bit, and those after it that can be fused with it.
const Composition* Coordinator::fuse(const Bits& runnable) {
  std::vector<int> bits;
  std::size_t size_bytes = 0;
  runnable.for_each([&](int bit) {
    const Request& request = *table_.at(bit);
    const std::size_t grown = size_bytes + request.size_bytes();
    if (bits.empty() ||
        (grown <= options_.fusion_bytes && can_fuse(*table_.at(bits.front()), request))) {
      bits.push_back(bit);
      size_bytes = grown;
    }
  });
  return history_.intern(std::move(bits));
}

void Coordinator::run_batch(const Composition& composition, Bits& runnable) {
  Batch batch;
  batch.have_some_joined = !joins_.ranks.none();
  batch.last = last_;
  for (const int bit : composition.bits) {
    table_.touch(bit);
    batch.items.push_back({table_.at(bit), std::nullopt});
    if (const PendingRequest* const pending = pending_.at(bit)) {
      batch.items.back().use = pending->use;
      pending_.remove(*pending);
    }
  }
  runnable -= composition.set;
  history_.append(&composition);
  actions_.run.push_back(std::move(batch));
}

void Coordinator::complete_join() {
  actions_.joined = Joined{*joins_.own, *joins_.last_rank};
  joins_ = {};
}

void Coordinator::next_exchange() {
  const std::uint64_t next = exchange_.number + 1;
  exchange_ = {};
  exchange_.number = next;
  ++counters_.exchanges;
  pending_.end_announcement();
  silent_since_ = kNever;
}

std::string Coordinator::rank_text(int rank) const {
  return list_world_ranks({rank}, options_.set.world_ranks);
}

// --- the end: a shutdown or a loss ---

void Coordinator::on_lost(int rank, const std::string& how, ErrorKind kind) {
  if (closed_) return;
  close(kind, rank_text(rank) + " " + how);
}

std::string Coordinator::describe_shutdown(const Header& merged) const {
  constexpr const char* kWhen = " before all ranks had submitted it";
  if (merged.thrower_rank) {  // the others may shut down because it does
    return rank_text(*merged.thrower_rank) +
           " left the scope of its kolo::Runtime by an exception" + kWhen +
           ". See what that rank wrote; an exception that nothing catches arrives here with its "
           "text.";
  }
  const bool is_world = options_.set.name == "world";
  return rank_text(*merged.shutdown_rank) +
         (is_world ? " shut Kolo down" : " shut Kolo down or removed the set") + kWhen;
}

void Coordinator::close(ErrorKind kind, std::string reason) {
  closed_ = Closed{kind, std::move(reason)};
  while (!pending_.empty()) {
    const PendingRequest& pending = pending_.begin()->second;
    fail(pending, closing_failure(describe(*pending.request)));
  }
  if (joins_.own) {
    actions_.failed.push_back({*std::exchange(joins_.own, {}), closing_failure("join")});
  }
  actions_.post.reset();
  actions_.wake_up_request.reset();
  exchange_.negotiation.reset();
}

Failure Coordinator::closing_failure(const std::string& operation) const {
  return {closed_->kind,
          operation + " on process set " + options_.set.name + ": " + closed_->reason};
}

void Coordinator::fail(const PendingRequest& pending, Failure failure) {
  actions_.failed.push_back({pending.use, std::move(failure)});
  pending_.remove(pending);
}

// --- negotiation (rule 8) ---
// Reports go up the tree, the verdict comes down.

void Coordinator::begin_negotiation(const Header& merged) {
  ++counters_.negotiations;
  silent_since_ = kNever;
  exchange_.negotiation = Exchange::Negotiation{own_report(merged), tree_.children, false};
  pending_.mark_reported();
  for (auto& [child, report] : std::exchange(exchange_.early_reports, {})) {
    on_message(child, std::move(report));
  }
  continue_negotiation();
}

Report Coordinator::own_report(const Header& merged) const {
  Report report;
  report.exchange = exchange_.number;
  pending_.for_each_to_report([&](const PendingRequest& pending) {
    Report::Item item;
    if (pending.bit) {
      item.bit = *pending.bit;
    } else {
      item.request = pending.request;
    }
    item.ranks = {options_.rank};
    if (pending.is_expired) item.expired_ranks = {options_.rank};
    item.stalled = pending.is_stalled;
    report.items.push_back(std::move(item));
  });
  if (joins_.own) report.joined_ranks = {options_.rank};
  if ((merged.has_expired || merged.has_stalled) && options_.activity) {
    if (std::string text = options_.activity(); !text.empty()) {
      report.activities.push_back({options_.rank, std::move(text)});
    }
  }
  return report;
}

void Coordinator::on_message(int from, ControlMessage message) {
  if (closed_) return;
  if (const Verdict* verdict = std::get_if<Verdict>(&message)) {
    apply(*verdict);
    return;
  }
  Report& report = std::get<Report>(message);
  if (!is_negotiating()) {  // only the child has seen all headers of this exchange yet
    exchange_.early_reports.emplace_back(from, std::move(report));
    return;
  }
  exchange_.negotiation->report.merge(report);
  std::erase(exchange_.negotiation->awaited_children, from);
  continue_negotiation();
}

void Coordinator::continue_negotiation() {
  if (!is_negotiating()) return;
  Exchange::Negotiation& negotiation = *exchange_.negotiation;
  if (!negotiation.awaited_children.empty() || negotiation.has_reported) return;
  negotiation.has_reported = true;
  if (tree_.parent) {
    actions_.send.emplace_back(*tree_.parent, std::move(negotiation.report));
  } else {
    apply(judge_.decide(std::move(negotiation.report), table_));
  }
}

void Coordinator::apply(const Verdict& verdict) {
  for (const int child : tree_.children) actions_.send.emplace_back(child, verdict);
  if (!tree_.parent) actions_.stalls = verdict.stalls;
  Bits evicted;
  for (const int bit : verdict.evicted) {
    evicted.set(bit);
    table_.remove(bit);
    // Submitted after this rank's report, or evicted in favour of requests that all ranks have.
    pending_.withdraw_bit(bit);
  }
  if (!evicted.none()) history_.forget(evicted);
  for (const Verdict::Addition& addition : verdict.added) {
    table_.add(addition.bit, addition.request);
    pending_.assign_bit(addition.bit, table_.at(addition.bit));
  }
  for (const Verdict::NameError& error : verdict.errors) fail_name(error);
  blocked_.clear();
  for (const std::string& name : verdict.blocked) blocked_ |= table_.bits_of(name);
  next_exchange();
}

/// The error ends one use of the name on every rank (rule 10).
void Coordinator::fail_name(const Verdict::NameError& error) {
  if (const PendingRequest* const pending = pending_.find(error.name)) {
    fail(*pending, error.failure);
  } else if (!joins_.own) {
    deferred_errors_.add(error.name, error.failure);
  }
}

}  // namespace kolo::runtime

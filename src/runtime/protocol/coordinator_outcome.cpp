// What an exchange, a negotiation or a loss leads to: the parts of Coordinator that are the same
// function of the same state on every rank.

#include <algorithm>

#include "runtime/protocol/coordinator.hpp"

namespace kolo::runtime {

void Coordinator::on_headers(const Header& merged) {
  if (closed_) return;
  (merged.joined - joined_).for_each([&](int rank) { last_joining_rank_ = rank; });
  joined_ = merged.joined;
  const Bits conflicts = conflicting(merged.own);
  const Bits runnable = (merged.own & merged.ready) - conflicts;
  if (runnable.none()) ++counters_.fruitless_exchanges;
  run(runnable);
  blocked_.clear();
  const Bits left = merged.own - runnable;
  left.for_each([&](int bit) { blocked_ |= table_.bits_of(table_.at(bit)->name); });

  if (merged.shutdown_rank >= 0) {
    const int rank = options_.set.world_ranks[static_cast<std::size_t>(merged.shutdown_rank)];
    next_exchange();
    const char* const how =
        options_.set.name == "world" ? " shut Kolo down" : " shut Kolo down or removed the set";
    close(ErrorKind::Shutdown,
          "rank " + std::to_string(rank) + how + " before all ranks had submitted it");
    return;
  }
  // What ranks submitted before they joined comes first: all others are ready for it, or it fails.
  const bool is_left = !left.none() || merged.has_unknown || merged.has_expired;
  const bool have_all_joined = joined_.count() == static_cast<int>(options_.set.world_ranks.size());
  if (have_all_joined && !is_left) complete_join();
  if (merged.has_unknown || merged.has_expired || merged.has_stalled || !conflicts.none()) {
    begin_negotiation();
  } else {
    next_exchange();
  }
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

/// Rule 6: batches that ran before first, the expected ones ahead of the others; then new ones.
void Coordinator::run(Bits runnable) {
  bool found = true;
  while (found && !runnable.none()) {
    const History::Composition predicted = history_.predict();
    found = predicted != History::kNone && runnable.contains(history_.set_of(predicted));
    if (found) {
      run_batch(predicted, runnable);
      continue;
    }
    const Bits rest = runnable;
    rest.for_each([&](int bit) {
      if (found || !runnable.test(bit)) return;
      const History::Composition known = history_.largest_within(runnable, bit);
      if (known == History::kNone) return;
      run_batch(known, runnable);
      found = true;
    });
  }
  while (!runnable.none()) run_batch(fuse(runnable), runnable);
}

/// A new batch of the lowest bit and those after it that may run with it.
History::Composition Coordinator::fuse(const Bits& runnable) {
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
  return history_.intern(bits);
}

void Coordinator::run_batch(History::Composition composition, Bits& runnable) {
  Batch batch;
  batch.have_some_joined = !joined_.none();
  for (const int bit : history_.bits_of(composition)) {
    table_.touch(bit);
    const std::size_t index = static_cast<std::size_t>(bit);
    Pending* pending = index < by_bit_.size() ? by_bit_[index] : nullptr;
    batch.items.push_back({table_.at(bit), std::nullopt});
    if (pending != nullptr) {
      batch.items.back().use = pending->use;
      end(*pending);
    }
  }
  runnable -= history_.set_of(composition);
  history_.append(composition);
  actions_.run.push_back(std::move(batch));
}

void Coordinator::complete_join() {
  actions_.joined = Joined{*join_, last_joining_rank_};
  join_.reset();
  join_is_announced_ = false;
  joined_.clear();
  last_joining_rank_ = Header::kNoRank;
}

void Coordinator::next_exchange() {
  ++exchange_;
  ++counters_.exchanges;
  has_posted_ = false;
  has_requested_wake_up_ = false;
  announced_ = std::exchange(announcing_, {});
  silent_since_ = kNever;
  negotiation_.reset();
}

// --- negotiation (rule 8) ---

void Coordinator::begin_negotiation() {
  ++counters_.negotiations;
  silent_since_ = kNever;
  negotiation_ = Negotiation{own_report(), tree_.children, false};
  for (auto& [name, pending] : pending_) {
    pending.is_stalled = false;
    pending.was_reported = true;
  }
  stalled_count_ = 0;
  unreported_count_ = 0;
  for (auto& [child, report] : std::exchange(early_reports_, {})) {
    on_message(child, std::move(report));
  }
  continue_negotiation();
}

Report Coordinator::own_report() const {
  Report report;
  report.exchange = exchange_;
  for (const auto& [name, pending] : pending_) {
    Report::Item item;
    item.bit = pending.bit;
    if (pending.bit < 0) item.request = *pending.request;
    item.ranks = {options_.rank};
    if (pending.is_expired) item.expired_ranks = {options_.rank};
    item.stalled = pending.is_stalled;
    report.items.push_back(std::move(item));
  }
  if (join_) report.joined_ranks = {options_.rank};
  return report;
}

void Coordinator::on_message(int from, ControlMessage message) {
  if (closed_) return;
  if (const Verdict* verdict = std::get_if<Verdict>(&message)) {
    apply(*verdict);
    return;
  }
  Report& report = std::get<Report>(message);
  if (!negotiation_) {  // the child has seen all headers of this exchange, this rank not yet
    early_reports_.emplace_back(from, std::move(report));
    return;
  }
  negotiation_->report.merge(report);
  std::erase(negotiation_->awaited_children, from);
  continue_negotiation();
}

void Coordinator::continue_negotiation() {
  if (!negotiation_ || !negotiation_->awaited_children.empty() || negotiation_->has_reported) {
    return;
  }
  negotiation_->has_reported = true;
  if (tree_.parent < 0) {
    apply(judge(negotiation_->report, table_, options_.table, options_.set));
  } else {
    actions_.send.emplace_back(tree_.parent, std::move(negotiation_->report));
  }
}

void Coordinator::apply(const Verdict& verdict) {
  for (const int child : tree_.children) actions_.send.emplace_back(child, verdict);
  if (tree_.parent < 0) actions_.stalls = verdict.stalls;
  for (const int bit : verdict.evicted) evict(bit);
  for (const Verdict::Addition& addition : verdict.added) introduce(addition);
  for (const Verdict::NameError& error : verdict.errors) raise(error);
  blocked_.clear();
  for (const std::string& name : verdict.blocked) blocked_ |= table_.bits_of(name);
  next_exchange();
}

void Coordinator::evict(int bit) {
  table_.remove(bit);
  history_.forget(bit);
  const std::size_t index = static_cast<std::size_t>(bit);
  if (index >= by_bit_.size() || by_bit_[index] == nullptr) return;
  // Submitted after this rank's report, or in the way of what all ranks have: unknown again.
  Pending& pending = *std::exchange(by_bit_[index], nullptr);
  pending.bit = -1;
  ready_.reset(bit);
  announced_.reset(bit);
  announcing_.reset(bit);
  if (!pending.is_expired) count_unknown(pending, 1);
}

void Coordinator::introduce(const Verdict::Addition& addition) {
  table_.add(addition.bit, addition.request);
  const auto found = pending_.find(addition.request.name);
  if (found == pending_.end() || *found->second.request != addition.request) return;
  Pending& pending = found->second;
  pending.bit = addition.bit;
  pending.request = table_.at(addition.bit);
  const std::size_t index = static_cast<std::size_t>(addition.bit);
  if (by_bit_.size() <= index) by_bit_.resize(index + 1);
  by_bit_[index] = &pending;
  if (pending.is_expired) return;
  count_unknown(pending, -1);
  ready_.set(addition.bit);
}

/// The error ends one use of the name on every rank (rule 10).
void Coordinator::raise(const Verdict::NameError& error) {
  if (const auto found = pending_.find(error.name); found != pending_.end()) {
    fail(found->second, error.failure);
  } else if (!join_) {
    deferred_errors_.add(error.name, error.failure);
  }
}

// --- ends ---

void Coordinator::on_lost(int rank, const std::string& how) {
  if (closed_) return;
  const int world_rank = options_.set.world_ranks[static_cast<std::size_t>(rank)];
  close(ErrorKind::PeerLost, "rank " + std::to_string(world_rank) + " " + how);
}

void Coordinator::close(ErrorKind kind, std::string reason) {
  closed_ = Closed{kind, std::move(reason)};
  while (!pending_.empty()) {
    Pending& pending = pending_.begin()->second;
    fail(pending, closing_failure(describe(*pending.request)));
  }
  if (join_) actions_.failed.push_back({*std::exchange(join_, {}), closing_failure("join")});
  actions_.post.reset();
  actions_.wake_up_request.reset();
  negotiation_.reset();
}

Failure Coordinator::closing_failure(const std::string& operation) const {
  return {closed_->kind,
          operation + " on process set " + options_.set.name + ": " + closed_->reason};
}

void Coordinator::fail(Pending& pending, Failure failure) {
  actions_.failed.push_back({pending.use, std::move(failure)});
  end(pending);
}

void Coordinator::end(Pending& pending) {
  const std::shared_ptr<const Request> request = pending.request;  // outlives the entry
  if (pending.bit >= 0) {
    by_bit_[static_cast<std::size_t>(pending.bit)] = nullptr;
    ready_.reset(pending.bit);
    announced_.reset(pending.bit);
    announcing_.reset(pending.bit);
  } else if (!pending.is_expired) {
    count_unknown(pending, -1);
  }
  if (pending.is_expired) --expired_count_;
  if (pending.is_stalled) --stalled_count_;
  by_use_.erase(pending.use);
  pending_.erase(request->name);
}

}  // namespace kolo::runtime

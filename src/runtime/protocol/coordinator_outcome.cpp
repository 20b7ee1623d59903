// The outcome of an exchange, a shutdown or a loss. Except for shutdown and loss, every rank
// computes the same function of the same state.

#include <algorithm>

#include "runtime/protocol/coordinator.hpp"

namespace kolo::runtime {

void Coordinator::on_headers(const Header& merged) {
  if (closed_) return;
  (merged.joined - joins_.ranks).for_each([&](int rank) { joins_.last_rank = rank; });
  joins_.ranks = merged.joined;
  const Bits conflicts = conflicting(merged.own);
  const Bits runnable = (merged.own & merged.ready) - conflicts;
  if (runnable.none()) ++counters_.fruitless_exchanges;
  run(runnable);
  blocked_.clear();
  const Bits left = merged.own - runnable;
  left.for_each([&](int bit) { blocked_ |= table_.bits_of(table_.at(bit)->name); });

  if (merged.shutdown_rank) {
    next_exchange();
    close(ErrorKind::Shutdown, describe_shutdown(merged));
    return;
  }
  // Rule 9: operations that ranks submitted before they joined complete or fail before the join.
  const bool is_left = !left.none() || merged.has_unknown || merged.has_expired;
  const bool have_all_joined = joins_.ranks.count() == size();
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

/// Rule 6: batches that ran before come first, predicted ones ahead of the others; then new ones.
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

/// A new batch: the lowest bit, and those after it that can be fused with it.
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
  batch.have_some_joined = !joins_.ranks.none();
  for (const int bit : history_.bits_of(composition)) {
    table_.touch(bit);
    batch.items.push_back({table_.at(bit), std::nullopt});
    if (const PendingRequest* const pending = pending_.at(bit)) {
      batch.items.back().use = pending->use;
      pending_.remove(*pending);
    }
  }
  runnable -= history_.set_of(composition);
  history_.append(composition);
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

std::string Coordinator::world_rank(int rank) const {
  return std::to_string(options_.set.world_ranks[static_cast<std::size_t>(rank)]);
}

// --- ends ---

void Coordinator::on_lost(int rank, const std::string& how) {
  if (closed_) return;
  close(ErrorKind::PeerLost, "rank " + world_rank(rank) + " " + how);
}

std::string Coordinator::describe_shutdown(const Header& merged) const {
  constexpr const char* kWhen = " before all ranks had submitted it";
  if (merged.thrower_rank) {  // the others may shut down because it does
    return "rank " + world_rank(*merged.thrower_rank) +
           " left the scope of its kolo::Runtime by an exception" + kWhen +
           ". See what that rank wrote; an exception that nothing catches arrives here with its "
           "text.";
  }
  const bool is_world = options_.set.name == "world";
  return "rank " + world_rank(*merged.shutdown_rank) +
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

}  // namespace kolo::runtime

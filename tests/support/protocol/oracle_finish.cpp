// The Oracle at the end, when no more events are possible: no use that is due may still wait.

#include <algorithm>
#include <set>

#include "support/protocol/oracle.hpp"

namespace kolo::simulator {

void Oracle::finish(const std::vector<const runtime::Coordinator*>& cores) const {
  bool any_shuts_down = false;
  bool any_died = false;
  bool any_froze = false;
  for (const Rank& rank : ranks_) {
    any_shuts_down |= rank.is_shutting_down && !rank.is_gone();
    any_died |= rank.is_lost && !rank.is_closed;
    any_froze |= rank.is_frozen && !rank.is_closed;
  }
  for (int rank = 0; rank < scenario_.ranks; ++rank) {
    const Rank& r = at(rank);
    if (r.is_gone() || r.is_closed) continue;
    if (any_died) fail(rank, "it never learnt that a rank died");
    // If a frozen rank keeps the request from this one, only its own deadline or shutdown can tell.
    if (r.is_shutting_down || (any_shuts_down && !any_froze)) {
      fail(rank, "it never shut down though a rank requested it");
    }
    for (std::size_t name = 0; name < r.pending.size(); ++name) {
      if (r.pending[name] && r.pending[name]->deadline != kNever) {
        fail(rank, label(static_cast<int>(name)) + " is pending beyond its deadline");
      }
    }
  }
  if (any_died || any_froze) {
    check_survivors();
  } else {
    check_left_overs();
    check_cost(cores);
  }
}

/// Survivors may differ by what one exchange ran.
void Oracle::check_survivors() const {
  std::size_t fewest = batches_.size();
  for (const Rank& rank : ranks_) {
    if (!rank.is_gone()) fewest = std::min(fewest, rank.batches);
  }
  for (const Rank& rank : ranks_) {
    if (rank.is_gone() || rank.batches == fewest) continue;
    if (batches_[rank.batches - 1].exchange != batches_[fewest].exchange) {
      fail(0, "survivors differ by more than one exchange's batches");
    }
  }
}

/// No request may be left that all ranks have.
void Oracle::check_left_overs() const {
  const bool all_joined = std::all_of(ranks_.begin(), ranks_.end(),
                                      [](const Rank& rank) { return rank.join.has_value(); });
  if (all_joined) fail(0, "all ranks have joined, but the join does not complete");
  for (std::size_t name = 0; name < outcomes_.size(); ++name) {
    const std::string what = label(static_cast<int>(name));
    std::set<int> shown_variants;
    bool is_pending = false;
    bool is_everywhere = true;
    for (int rank = 0; rank < scenario_.ranks; ++rank) {
      const Rank& r = at(rank);
      const auto& use = r.pending[name];
      is_everywhere &= use.has_value() || r.join.has_value();
      if (!use) continue;
      is_pending = true;
      if (!request(static_cast<int>(name), use->variant).invalid_reason.empty()) {
        fail(rank, "an invalid request of " + what + " stays");
      }
      if (use->shown_in != 0 && use->shown_in < r.exchange) shown_variants.insert(use->variant);
      if (scenario_.stall_warn != kNever && !use->is_reported) {
        fail(rank, what + " stalls and was never reported");
      }
      if (r.position[name] < outcomes_[name].size()) {
        fail(rank, what + " is pending, but it has ended on other ranks");
      }
    }
    if (is_pending && is_everywhere) {
      fail(0, what + " was submitted by all ranks and never runs");
    }
    if (shown_variants.size() > 1) fail(0, "a mismatch of " + what + " stays");
  }
}

/// A submission costs at most one exchange to introduce it and one to show it; a deadline, stall,
/// join or shutdown costs one; and one more if the current header was already posted.
void Oracle::check_cost(const std::vector<const runtime::Coordinator*>& cores) const {
  std::uint64_t exchanges = 0;
  for (int rank = 0; rank < scenario_.ranks; ++rank) {
    if (!at(rank).is_closed && at(rank).batches != batches_.size()) {
      fail(rank, "it ran fewer batches than others");
    }
    exchanges = std::max(exchanges, cores[static_cast<std::size_t>(rank)]->exchange());
  }
  if (exchanges > 4 + 3 * causes_) {
    fail(0, "flapping: " + std::to_string(exchanges) + " exchanges for " + std::to_string(causes_) +
                " causes");
  }
}

}  // namespace kolo::simulator

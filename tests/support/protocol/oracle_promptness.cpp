// The Oracle on promptness: a request that all ranks have submitted must end within the patience,
// and immediately if every rank's caller waits for it (rule 4). As a complete prediction of
// something else may hold the latter back (rule 5), it is judged only if nothing else is pending.

#include <algorithm>

#include "support/protocol/oracle.hpp"

namespace kolo::simulator {

std::ptrdiff_t Oracle::pending_count(const Rank& rank) {
  return std::count_if(rank.pending.begin(), rank.pending.end(),
                       [](const auto& use) { return use.has_value(); });
}

/// Called when a rank has submitted or awaited `name`, or joined: do all ranks have it now?
void Oracle::find_due(int name, Time now) {
  if (is_disturbed_) return;
  const auto index = static_cast<std::size_t>(name);
  std::optional<std::size_t> position;
  std::optional<int> variant;
  bool is_awaited = true;
  bool is_only_request = true;
  bool is_one_request = true;
  for (Rank& rank : ranks_) {
    const PendingUse* use = pending(rank, name);
    if (use == nullptr) {
      if (rank.join) continue;
      return;
    }
    if (use->expected || (position && *position != rank.position[index])) return;
    position = rank.position[index];
    is_one_request &= use->variant == variant.value_or(use->variant);
    variant = use->variant;
    is_awaited &= use->is_awaited;
    is_only_request &= pending_count(rank) == 1;
  }
  if (!position) return;
  const bool is_prompt = is_awaited && is_only_request && is_one_request;
  const Time by = now + bound_ + (is_prompt ? Time{0} : scenario_.patience);
  Due& due = due_[index];
  if (due.at != kNever && due.position == *position && due.at <= by) return;
  due = {*position, by};
}

void Oracle::ended(int rank, int name, Time now) {
  const PendingUse* use = pending(at(rank), name);
  if (use != nullptr && use->deadline != kNever && now > use->deadline + bound_ && !is_disturbed_) {
    fail(rank, label(name) + " ends long after its deadline");
  }
  const Due& due = due_[static_cast<std::size_t>(name)];
  if (due.position == at(rank).position[static_cast<std::size_t>(name)] && now > due.at &&
      !is_disturbed_) {
    fail(rank, label(name) + " was submitted by all ranks and ends " +
                   std::to_string((now - due.at).count() / 1000) + " us too late");
  }
}

void Oracle::forget_due() {
  for (Due& due : due_) due.at = kNever;
}

}  // namespace kolo::simulator

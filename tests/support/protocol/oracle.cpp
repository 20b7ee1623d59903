#include "support/protocol/oracle.hpp"

#include <algorithm>
#include <variant>

namespace kolo::simulator {

using runtime::Coordinator;
using runtime::Header;
using runtime::UseId;
using runtime::Verdict;

namespace {

/// An upper bound on the rounds of wake-up requests, headers, reports and verdicts between a cause
/// and its effect: the exchange in flight with its negotiation, one that introduces a request, one
/// that runs it, and as many in reserve.
constexpr int kRounds = 6;

Time round_bound(const Scenario& scenario) {
  int depth = 0;
  for (int rank = scenario.ranks - 1; rank > 0; rank = (rank - 1) / scenario.tree_width) ++depth;
  const int hops =
      6 * depth + 4;  // wake-up request there and back, header up and down, report, verdict
  // If there are fewer bits than names, later names wait for earlier ones to release theirs.
  const int refills = 1 + static_cast<int>(scenario.names.size() / scenario.table_bits);
  return refills * kRounds * hops * scenario.delays.bound();
}

}  // namespace

Time Delays::bound() const {
  const Time one = long_one_in > 0 ? longest : Time{0};
  return std::max(transfer, one) + 3 * std::max(wake, one) + call;
}

Oracle::Oracle(const Scenario& scenario)
    : scenario_(scenario),
      bound_(round_bound(scenario)),
      ranks_(static_cast<std::size_t>(scenario.ranks)),
      outcomes_(scenario.names.size()),
      due_(scenario.names.size()) {
  for (Rank& rank : ranks_) {
    rank.pending.resize(scenario.names.size());
    rank.position.resize(scenario.names.size());
  }
}

// --- submissions, joins and losses ---

void Oracle::submitted(int rank, UseId use, int name, int variant, Time deadline, Time now,
                       std::uint64_t exchange) {
  ++causes_;
  if (deadline != kNever) ++causes_;
  if (scenario_.stall_warn != kNever) ++causes_;
  Rank& r = at(rank);
  auto& slot = r.pending[static_cast<std::size_t>(name)];
  if (slot) fail(rank, "the simulator submitted " + label(name) + " twice");
  slot.emplace();
  slot->use = use;
  slot->variant = variant;
  slot->deadline = deadline;
  std::size_t& position = r.position[static_cast<std::size_t>(name)];
  if (position < outcomes(name).size() && outcomes(name)[position].exchange < exchange) {
    const Outcome& outcome = outcomes(name)[position];
    if (!outcome.error) {
      fail(rank, "exchange " + std::to_string(outcome.exchange) + " ran " + label(name) +
                     " elsewhere but not here");
    }
    slot->expected = outcome.error;
    ++position;
  }
  find_due(name, now);
}

void Oracle::awaited(int rank, int name, Time now) {
  if (PendingUse* use = pending(at(rank), name)) {
    use->is_awaited = true;
    find_due(name, now);
  }
}

void Oracle::joined(int rank, UseId use, Time now, std::uint64_t exchange) {
  ++causes_;
  Rank& r = at(rank);
  r.join = use;
  if (r.is_closed) return;  // it will fail
  for (std::size_t name = 0; name < r.position.size(); ++name) {
    if (r.pending[name] && !r.pending[name]->expected) continue;
    std::size_t& position = r.position[name];
    const auto& log = outcomes_[name];
    while (position < log.size() && log[position].error && log[position].exchange < exchange) {
      ++position;
    }
  }
  for (std::size_t name = 0; name < due_.size(); ++name) {
    find_due(static_cast<int>(name), now);
  }
}

void Oracle::shut_down(int rank) {
  ++causes_;
  at(rank).is_shutting_down = true;
  is_disturbed_ = true;
}

// --- decisions ---

void Oracle::decided(int rank, const Coordinator& core, const Coordinator::Actions& actions,
                     std::uint64_t ran_in, Time now) {
  Rank& r = at(rank);
  check_runs(rank, actions, ran_in, now);
  if (actions.joined) check_join(rank, *actions.joined);
  if (ran_in != 0) record_seen(rank, ran_in, now);
  for (const auto& [to, message] : actions.send) {
    if (const Verdict* verdict = std::get_if<Verdict>(&message)) record_verdict(*verdict);
  }
  if (core.exchange() != r.exchange) {
    if (core.exchange() != r.exchange + 1) fail(rank, "an exchange was left out");
    pass_errors(rank, r.exchange);
    r.exchange = core.exchange();
  }
  for (const Coordinator::Failed& failed : actions.failed) check_failed(rank, failed, now);
  for (const Verdict::Stall& stall : actions.stalls) check_stall(stall, r.exchange - 1);
  if (actions.post) check_post(rank, *actions.post, now);
  if (actions.wake_up_request && *actions.wake_up_request != r.exchange)
    fail(rank, "it requests another exchange");
  for (std::size_t name = 0; name < r.pending.size(); ++name) {
    if (r.pending[name] && r.pending[name]->expected) {
      fail(rank, label(static_cast<int>(name)) + " did not consume the error that waited for it");
    }
  }
  if (core.is_closed() && !r.is_closed) check_close(rank);
}

/// What this rank will report if the exchange leads to a negotiation.
void Oracle::record_seen(int rank, std::uint64_t exchange, Time now) {
  Rank& r = at(rank);
  Seen& seen = r.seen[exchange % 2];
  seen.exchange = exchange;
  seen.is_joined = r.join.has_value();
  seen.pending.clear();
  for (std::size_t name = 0; name < r.pending.size(); ++name) {
    if (const auto& use = r.pending[name]; use && !use->expected) {
      seen.pending.push_back({static_cast<int>(name), use->variant, use->deadline <= now});
    }
  }
}

void Oracle::check_close(int rank) {
  Rank& r = at(rank);
  r.is_closed = true;
  if (r.join) fail(rank, "the set is closed with a join still pending");
  for (std::size_t name = 0; name < r.pending.size(); ++name) {
    if (r.pending[name]) {
      fail(rank, "the set is closed with " + label(static_cast<int>(name)) + " still pending");
    }
  }
  if (r.knows_of_loss) return;
  if (closed_in_ == 0) closed_in_ = r.exchange;
  if (closed_in_ != r.exchange) fail(rank, "it shut down in another exchange than others");
}

void Oracle::check_post(int rank, const Header& header, Time now) {
  Rank& r = at(rank);
  if (header.exchange != r.exchange || header.exchange != r.posted + 1) {
    fail(rank, "it posted the header of exchange " + std::to_string(header.exchange) + " after " +
                   std::to_string(r.posted) + ", in exchange " + std::to_string(r.exchange));
  }
  for (const Rank& other : ranks_) {  // two slots: no rank may be two exchanges ahead
    if (!other.is_closed && !other.is_lost && !other.is_frozen && other.exchange + 1 < r.exchange) {
      fail(rank, "it overwrites a header that another rank has not read");
    }
  }
  r.posted = header.exchange;
  if (r.join && r.join_shown == 0) r.join_shown = header.exchange;
  for (auto& use : r.pending) {
    if (!use) continue;
    if (use->deadline <= now) use->is_withdrawn = true;
    if (use->shown_in == 0) use->shown_in = header.exchange;
  }
  int highest = -1;
  (header.own | header.ready).for_each([&](int bit) { highest = bit; });
  const std::size_t limit =
      std::min(scenario_.table_bits, std::max(scenario_.table_capacity, max_requests_));
  if (scenario_.ranks > 1 && highest >= static_cast<int>(limit)) {
    fail(rank, "bit " + std::to_string(highest) + " is in use, beyond the table's capacity");
  }
}

std::uint64_t Oracle::outcome_count() const {
  std::uint64_t count = 0;
  for (const auto& log : outcomes_) count += log.size();
  return count;
}

void Oracle::fail(int rank, const std::string& what) const {
  throw Violation("rank " + std::to_string(rank) + ": " + what);
}

std::string Oracle::label(int name) const {
  return "'" + scenario_.names[static_cast<std::size_t>(name)].front().name + "'";
}

}  // namespace kolo::simulator

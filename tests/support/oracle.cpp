#include "oracle.hpp"

#include <algorithm>
#include <set>
#include <variant>

#include "runtime/tree.hpp"

namespace kolo::simulator {

using runtime::Coordinator;
using runtime::Header;
using runtime::Request;
using runtime::UseId;
using runtime::Verdict;

namespace {

/// Rounds of asks, headers, reports and verdicts that lie between a cause and its effect at most:
/// the exchange under way with its negotiation, one that introduces a request, one that runs it, and
/// as many to spare.
constexpr int kRounds = 6;

Time round_bound(const Scenario& scenario) {
  int depth = 0;
  for (int rank = scenario.ranks - 1; rank > 0; rank = (rank - 1) / scenario.tree_width) ++depth;
  const int hops = 6 * depth + 4;  // ask there and back, header up and down, report, verdict
  return kRounds * hops * scenario.delays.bound();
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

// --- what a coordinator was told ---

void Oracle::submitted(int rank, UseId use, int name, int variant, Time deadline, Time now,
                       std::uint64_t exchange) {
  ++causes_;
  if (deadline != kNever) ++causes_;
  Rank& r = at(rank);
  auto& slot = r.pending[static_cast<std::size_t>(name)];
  if (slot) fail(rank, "the simulator submitted " + label(name) + " twice");
  slot = PendingUse{use, variant, deadline, false, 0, std::nullopt};
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
  look_for_due(name, rank, now);
}

void Oracle::awaited(int rank, int name, Time now) {
  if (PendingUse* use = pending(at(rank), name)) {
    use->is_awaited = true;
    look_for_due(name, rank, now);
  }
}

void Oracle::joined(int rank, UseId use, Time now, std::uint64_t exchange) {
  ++causes_;
  Rank& r = at(rank);
  r.join = use;
  for (std::size_t name = 0; name < r.position.size(); ++name) {
    if (r.pending[name] && !r.pending[name]->expected) continue;
    std::size_t& position = r.position[name];
    const auto& log = outcomes_[name];
    while (position < log.size() && log[position].error && log[position].exchange < exchange) {
      ++position;
    }
  }
  for (std::size_t name = 0; name < due_.size(); ++name) {
    look_for_due(static_cast<int>(name), rank, now);
  }
}

void Oracle::shut_down(int rank) {
  ++causes_;
  at(rank).is_shutting_down = true;
  is_disturbed_ = true;
}

// --- what it decided ---

void Oracle::decided(int rank, const Coordinator& core, const Coordinator::Actions& actions,
                     std::uint64_t ran_in, Time now) {
  Rank& r = at(rank);
  check_runs(rank, actions, ran_in, now);
  if (ran_in != 0) {
    Seen& seen = r.seen[ran_in % 2];
    seen.exchange = ran_in;
    seen.is_joined = r.join.has_value();
    seen.pending.clear();
    for (std::size_t name = 0; name < r.pending.size(); ++name) {
      if (const auto& use = r.pending[name]; use && !use->expected) {
        seen.pending.push_back({static_cast<int>(name), use->variant, use->deadline <= now});
      }
    }
  }
  for (const auto& [to, message] : actions.send) {
    if (const Verdict* verdict = std::get_if<Verdict>(&message)) record_verdict(*verdict);
  }
  if (core.exchange() != r.exchange) {
    if (core.exchange() != r.exchange + 1) fail(rank, "an exchange was left out");
    pass_errors(rank, r.exchange);
    r.exchange = core.exchange();
  }
  for (const Coordinator::Failed& failed : actions.failed) check_failed(rank, failed, now);
  if (actions.joined) check_join(rank, *actions.joined);
  for (const Verdict::Stall& stall : actions.stalls) check_stall(stall, r.exchange - 1);
  if (actions.post) check_post(rank, *actions.post);
  if (actions.ask && *actions.ask != r.exchange) fail(rank, "it asks for another exchange");

  for (std::size_t name = 0; name < r.pending.size(); ++name) {
    const auto& use = r.pending[name];
    if (use && use->expected) {
      fail(rank, label(static_cast<int>(name)) + " did not consume the error that waited for it");
    }
    if (use && core.is_closed()) {
      fail(rank, "the set is closed with " + label(static_cast<int>(name)) + " still pending");
    }
  }
  if (core.is_closed() && !r.is_closed) {
    r.is_closed = true;
    if (r.join) fail(rank, "the set is closed with a join still pending");
    if (r.knows_loss) return;
    if (closed_in_ == 0) closed_in_ = r.exchange;
    if (closed_in_ != r.exchange) fail(rank, "it shut down in another exchange than others");
  }
}

void Oracle::check_runs(int rank, const Coordinator::Actions& actions, std::uint64_t ran_in,
                        Time now) {
  Rank& r = at(rank);
  if (!actions.run.empty() && ran_in == 0) fail(rank, "a batch ran outside an exchange's end");
  for (const Coordinator::Batch& batch : actions.run) {
    if (batch.items.empty()) fail(rank, "an empty batch ran");
    const bool is_new = r.batches == batches_.size();
    if (is_new) batches_.push_back({ran_in, {}});
    BatchRecord& record = batches_[r.batches++];
    if (record.exchange != ran_in) {
      fail(rank, "batch " + std::to_string(r.batches) + " ran in exchange " +
                     std::to_string(ran_in) + " here, elsewhere in " +
                     std::to_string(record.exchange));
    }
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < batch.items.size(); ++i) {
      const Coordinator::Batch::Item& item = batch.items[i];
      const auto identity = identify(*item.request);
      if (is_new) {
        record.items.push_back(identity);
      } else if (i >= record.items.size() || record.items[i] != identity) {
        fail(rank, "batch " + std::to_string(r.batches) + " holds " + label(identity.first) +
                       " where other ranks have something else");
      }
      bytes += item.request->size_bytes();
      if (batch.items.size() > 1 && !can_fuse(*batch.items.front().request, *item.request)) {
        fail(rank, "requests that must not be fused were fused");
      }
      check_item(rank, ran_in, identity.first, identity.second, item.use, now);
    }
    if (record.items.size() != batch.items.size()) {
      fail(rank, "batch " + std::to_string(r.batches) + " holds less than on other ranks");
    }
    if (batch.items.size() > 1 && bytes > scenario_.fusion_bytes) {
      fail(rank, "a fused batch is larger than fusion_bytes");
    }
  }
}

void Oracle::check_item(int rank, std::uint64_t exchange, int name, int variant,
                        std::optional<UseId> use, Time now) {
  Rank& r = at(rank);
  PendingUse* mine = pending(r, name);
  if (use) {
    if (mine == nullptr || mine->use != *use) fail(rank, "what ran is not pending: " + label(name));
    if (mine->variant != variant) fail(rank, label(name) + " ran with other metadata");
  } else if (mine != nullptr || !r.join) {
    fail(rank, label(name) + " ran with the identity though this rank has not joined or has it");
  }
  std::size_t& position = r.position[static_cast<std::size_t>(name)];
  auto& log = outcomes(name);
  if (position == log.size()) log.push_back({exchange, std::nullopt, variant});
  const Outcome& outcome = log[position];
  if (outcome.error || outcome.exchange != exchange || outcome.variant != variant) {
    fail(rank, "use " + std::to_string(position) + " of " + label(name) + " ran in exchange " +
                   std::to_string(exchange) + ", but on other ranks it " +
                   (outcome.error ? "failed: " + outcome.error->text
                                  : "ran in " + std::to_string(outcome.exchange)));
  }
  ended(rank, name, now);
  ++position;
  r.pending[static_cast<std::size_t>(name)].reset();
}

void Oracle::record_verdict(const Verdict& verdict) {
  const auto [place, is_new] = verdicts_.try_emplace(verdict.exchange);
  if (!is_new) return;
  check_verdict(verdict);
  std::set<std::pair<int, int>> requests;
  for (const Rank& rank : ranks_) {
    for (const Seen::Use& use : rank.seen[verdict.exchange % 2].pending) {
      requests.insert({use.name, use.variant});
    }
  }
  most_requests_ = std::max(most_requests_, requests.size());
  for (const Verdict::NameError& error : verdict.errors) {
    const int name = std::stoi(error.name.substr(1));
    place->second.errors.emplace(name, error.failure);
    outcomes(name).push_back({verdict.exchange, error.failure, 0});
  }
}

/// A joined rank has had its use of whatever failed without it.
void Oracle::pass_errors(int rank, std::uint64_t exchange) {
  Rank& r = at(rank);
  const auto verdict = verdicts_.find(exchange);
  if (verdict == verdicts_.end() || !r.join) return;
  for (const auto& [name, failure] : verdict->second.errors) {
    const PendingUse* use = pending(r, name);
    if (use == nullptr || use->expected) ++r.position[static_cast<std::size_t>(name)];
  }
}

void Oracle::check_failed(int rank, const Coordinator::Failed& failed, Time now) {
  Rank& r = at(rank);
  const bool is_final =
      failed.failure.kind == ErrorKind::PeerLost || failed.failure.kind == ErrorKind::Shutdown;
  if (is_final) {
    check_ending_text(failed.failure.kind, failed.failure.text);
    if (failed.failure.kind == ErrorKind::PeerLost && !r.knows_loss) {
      fail(rank, "PeerLostError though this rank was told of no loss");
    }
  }
  if (r.join == failed.use) {
    if (!is_final) fail(rank, "a join failed: " + failed.failure.text);
    r.join.reset();
    return;
  }
  const auto slot = std::find_if(r.pending.begin(), r.pending.end(), [&](const auto& use) {
    return use && use->use == failed.use;
  });
  if (slot == r.pending.end()) fail(rank, "a use failed that is not pending: " + failed.failure.text);
  const int name = static_cast<int>(slot - r.pending.begin());
  if ((*slot)->expected) {
    if (*(*slot)->expected != failed.failure) {
      fail(rank, label(name) + " was to fail like the others (" + (*slot)->expected->text +
                     ") but got: " + failed.failure.text);
    }
  } else if (!is_final) {
    auto& log = outcomes(name);
    std::size_t& position = r.position[static_cast<std::size_t>(name)];
    if (scenario_.ranks == 1) log.push_back({r.exchange - 1, failed.failure, 0});
    if (position >= log.size() || log[position].error != failed.failure) {
      fail(rank, "use " + std::to_string(position) + " of " + label(name) +
                     " failed here only, or otherwise than elsewhere: " + failed.failure.text);
    }
    ended(rank, name, now);
    ++position;
  }
  slot->reset();
}

void Oracle::check_join(int rank, const Coordinator::Joined& joined) {
  Rank& r = at(rank);
  if (r.join != joined.use) fail(rank, "a join completed that was not under way");
  if (r.joins == last_joining_ranks_.size()) {
    int last = 0;
    for (int other = 0; other < scenario_.ranks; ++other) {
      if (at(other).join_shown == 0) {
        fail(rank, "the join completed before rank " + std::to_string(other) + " joined");
      }
      if (at(other).join_shown >= at(last).join_shown) last = other;
    }
    last_joining_ranks_.emplace_back(last);
  }
  if (last_joining_ranks_[r.joins++] != joined.last_rank) {
    fail(rank, "rank " + std::to_string(joined.last_rank) + " is said to have joined last");
  }
  r.join.reset();
  r.join_shown = 0;
  forget_due();
}

void Oracle::check_post(int rank, const Header& header) {
  Rank& r = at(rank);
  if (header.exchange != r.exchange || header.exchange != r.posted + 1) {
    fail(rank, "it posted the header of exchange " + std::to_string(header.exchange) + " after " +
                   std::to_string(r.posted) + ", in exchange " + std::to_string(r.exchange));
  }
  for (const Rank& other : ranks_) {  // two slots
    if (!other.is_closed && !other.is_lost && !other.is_frozen && other.exchange + 1 < r.exchange) {
      fail(rank, "it overwrites a header that another rank has not read");
    }
  }
  r.posted = header.exchange;
  if (r.join && r.join_shown == 0) r.join_shown = header.exchange;
  for (auto& use : r.pending) {
    if (use && use->first_posted == 0) use->first_posted = header.exchange;
  }
  int highest = -1;
  (header.own | header.ready).for_each([&](int bit) { highest = bit; });
  const std::size_t limit = std::max(scenario_.table_capacity, most_requests_);
  if (scenario_.ranks > 1 && highest >= static_cast<int>(limit)) {
    fail(rank, "bit " + std::to_string(highest) + " is in use, beyond the table's capacity");
  }
}

// --- the end ---

void Oracle::finish(const std::vector<const Coordinator*>& cores) const {
  const auto is_gone = [](const Rank& rank) { return rank.is_lost || rank.is_frozen; };
  bool somebody_shuts_down = false;
  bool somebody_died = false;
  bool somebody_froze = false;
  bool all_joined = true;
  for (const Rank& rank : ranks_) {
    somebody_shuts_down |= rank.is_shutting_down && !is_gone(rank);
    somebody_died |= rank.is_lost && !rank.is_closed;
    somebody_froze |= rank.is_frozen && !rank.is_closed;
    all_joined &= rank.join.has_value();
  }
  for (int rank = 0; rank < scenario_.ranks; ++rank) {
    const Rank& r = at(rank);
    if (is_gone(r) || r.is_closed) continue;
    if (somebody_died) fail(rank, "it never learnt that a rank died");
    if (somebody_shuts_down) fail(rank, "it never shut down though a rank asked for it");
    for (std::size_t name = 0; name < r.pending.size(); ++name) {
      if (r.pending[name] && r.pending[name]->deadline != kNever) {
        fail(rank, label(static_cast<int>(name)) + " is pending beyond its deadline");
      }
    }
  }
  if (somebody_died || somebody_froze) {
    std::size_t fewest = batches_.size();
    for (const Rank& rank : ranks_) {
      if (!is_gone(rank)) fewest = std::min(fewest, rank.batches);
    }
    if (fewest < batches_.size() && batches_[fewest].exchange != batches_.back().exchange) {
      const bool by_survivor = std::any_of(ranks_.begin(), ranks_.end(), [&](const Rank& rank) {
        return !is_gone(rank) && rank.batches > fewest &&
               batches_[rank.batches - 1].exchange != batches_[fewest].exchange;
      });
      if (by_survivor) fail(0, "survivors differ by more than one exchange's batches");
    }
    return;
  }
  if (all_joined) fail(0, "all ranks have joined, but the join does not complete");
  for (std::size_t name = 0; name < outcomes_.size(); ++name) {
    std::set<int> variants;
    bool is_pending_everywhere = true;
    bool is_pending = false;
    for (int rank = 0; rank < scenario_.ranks; ++rank) {
      const Rank& r = at(rank);
      const auto& use = r.pending[name];
      if (use) variants.insert(use->variant);
      is_pending |= use.has_value();
      is_pending_everywhere &= use.has_value() || r.join.has_value();
      if (use && r.position[name] < outcomes_[name].size()) {
        fail(rank, label(static_cast<int>(name)) + " is pending, but it has ended on other ranks");
      }
    }
    if (is_pending && is_pending_everywhere) {
      fail(0, label(static_cast<int>(name)) + " was submitted by all ranks and never runs");
    }
    if (variants.size() > 1) fail(0, "a mismatch of " + label(static_cast<int>(name)) + " stays");
  }
  std::uint64_t exchanges = 0;
  for (int rank = 0; rank < scenario_.ranks; ++rank) {
    if (!at(rank).is_closed && at(rank).batches != batches_.size()) {
      fail(rank, "it ran fewer batches than others");
    }
    exchanges = std::max(exchanges, cores[static_cast<std::size_t>(rank)]->exchange());
  }
  // A submission costs at most an exchange to introduce it and one to show it, a deadline, a join or
  // a shutdown one each; one more of each where the current header was posted already.
  if (scenario_.stall_warn == kNever && exchanges > 4 + 3 * causes_) {
    fail(0, "flapping: " + std::to_string(exchanges) + " exchanges for " +
                std::to_string(causes_) + " causes");
  }
}

std::uint64_t Oracle::outcome_count() const {
  std::uint64_t count = 0;
  for (const auto& log : outcomes_) count += log.size();
  return count;
}

std::pair<int, int> Oracle::identify(const Request& request) const {
  const int name = std::stoi(request.name.substr(1));
  const auto& variants = scenario_.names[static_cast<std::size_t>(name)];
  const auto found = std::find(variants.begin(), variants.end(), request);
  if (found == variants.end()) throw Violation("a request ran that nobody made: " + request.name);
  return {name, static_cast<int>(found - variants.begin())};
}

void Oracle::fail(int rank, const std::string& what) const {
  throw Violation("rank " + std::to_string(rank) + ": " + what);
}

std::string Oracle::label(int name) const {
  return "'" + scenario_.names[static_cast<std::size_t>(name)].front().name + "'";
}

}  // namespace kolo::simulator

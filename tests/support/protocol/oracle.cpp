#include "support/protocol/oracle.hpp"

#include <algorithm>
#include <cctype>
#include <set>
#include <variant>

namespace kolo::simulator {

using runtime::Coordinator;
using runtime::Header;
using runtime::Request;
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

// --- outcomes: every rank runs the same batches, and a name's k-th use ends alike on all ---

void Oracle::check_runs(int rank, const Coordinator::Actions& actions, std::uint64_t ran_in,
                        Time now) {
  Rank& r = at(rank);
  if (!actions.run.empty() && ran_in == 0) fail(rank, "a batch ran outside an exchange's end");
  for (const Coordinator::Batch& batch : actions.run) {
    if (batch.items.empty()) fail(rank, "an empty batch ran");
    const bool is_new = r.batches == batches_.size();
    if (is_new) batches_.push_back({ran_in, batch.have_some_joined, {}});
    BatchRecord& record = batches_[r.batches++];
    if (record.exchange != ran_in) {
      fail(rank, "batch " + std::to_string(r.batches) + " ran in exchange " +
                     std::to_string(ran_in) + " here, elsewhere in " +
                     std::to_string(record.exchange));
    }
    if (record.have_some_joined != batch.have_some_joined) {
      fail(rank, "other ranks say otherwise about whether some have joined");
    }
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < batch.items.size(); ++i) {
      const Coordinator::Batch::Item& item = batch.items[i];
      if (!item.use && !batch.have_some_joined) fail(rank, "a batch does not say that some joined");
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
  if (!request(name, variant).invalid_reason.empty())
    fail(rank, "an invalid request ran: " + label(name));
  if (use) {
    if (mine == nullptr || mine->use != *use) fail(rank, "what ran is not pending: " + label(name));
    if (mine->variant != variant) fail(rank, label(name) + " ran with other metadata");
    if (mine->is_withdrawn) fail(rank, label(name) + " ran after its deadline had withdrawn it");
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
  max_requests_ = std::max(max_requests_, requests.size());
  for (const Verdict::NameError& error : verdict.errors) {
    const int name = std::stoi(error.name.substr(1));
    place->second.errors.emplace(name, error.failure);
    outcomes(name).push_back({verdict.exchange, error.failure, 0});
  }
}

/// A joined rank counts every use that failed without it as its own.
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
    if (failed.failure.kind == ErrorKind::PeerLost && !r.knows_of_loss) {
      fail(rank, "PeerLostError though this rank was told of no loss");
    }
  }
  if (r.join == failed.use) {
    if (!is_final) fail(rank, "a join failed: " + failed.failure.text);
    r.join.reset();
    return;
  }
  const auto slot = std::find_if(r.pending.begin(), r.pending.end(),
                                 [&](const auto& use) { return use && use->use == failed.use; });
  if (slot == r.pending.end())
    fail(rank, "a use failed that is not pending: " + failed.failure.text);
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
  for (std::size_t name = 0; name < r.pending.size(); ++name) {
    if (r.pending[name] && !r.pending[name]->expected) {
      fail(rank, "the join completed with " + label(static_cast<int>(name)) + " still pending");
    }
  }
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

std::pair<int, int> Oracle::identify(const Request& request) const {
  const int name = std::stoi(request.name.substr(1));
  const auto& variants = scenario_.names[static_cast<std::size_t>(name)];
  const auto found = std::find(variants.begin(), variants.end(), request);
  if (found == variants.end()) throw Violation("a request ran that nobody made: " + request.name);
  return {name, static_cast<int>(found - variants.begin())};
}

// --- errors: each must be deserved, and its text must name the right ranks ---

namespace {

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

/// The lists of ranks in a text, such as "rank 3" or "ranks 0, 2 and 5", in order.
std::vector<std::vector<int>> ranks_in(const std::string& text) {
  std::vector<std::vector<int>> lists;
  for (std::size_t at = text.find("rank"); at != std::string::npos;
       at = text.find("rank", at + 1)) {
    std::size_t i = at + 4;
    const bool is_plural = i < text.size() && text[i] == 's';
    if (is_plural) ++i;
    if (i + 1 >= text.size() || text[i] != ' ' || !is_digit(text[i + 1])) continue;
    std::vector<int> list;
    bool is_last = !is_plural;
    for (++i;;) {
      int number = 0;
      while (i < text.size() && is_digit(text[i])) number = 10 * number + (text[i++] - '0');
      list.push_back(number);
      if (is_last) break;
      is_last = text.compare(i, 5, " and ") == 0;
      i += is_last ? 5 : 2;  // or ", "
      if (i >= text.size() || !is_digit(text[i])) break;
    }
    lists.push_back(std::move(list));
  }
  return lists;
}

}  // namespace

void Oracle::check_verdict(const Verdict& verdict) const {
  std::map<int, std::set<int>> variants;
  std::set<int> expired;
  for (int rank = 0; rank < scenario_.ranks; ++rank) {
    const Seen& seen = at(rank).seen[verdict.exchange % 2];
    if (seen.exchange != verdict.exchange) fail(rank, "a verdict came before this rank's report");
    for (const Seen::Use& use : seen.pending) {
      variants[use.name].insert(use.variant);
      if (use.is_expired) expired.insert(use.name);
    }
  }
  std::map<int, const Failure*> errors;
  for (const Verdict::NameError& error : verdict.errors) {
    if (!errors.emplace(std::stoi(error.name.substr(1)), &error.failure).second) {
      fail(0, "two errors for " + error.name + " in one verdict");
    }
  }
  for (const auto& [name, found] : variants) {
    const auto error = errors.find(name);
    const bool is_invalid =
        std::any_of(found.begin(), found.end(), [this, name = name](int variant) {
          return !request(name, variant).invalid_reason.empty();
        });
    const bool is_mismatch = !is_invalid && found.size() > 1;
    const bool is_timeout = !is_invalid && !is_mismatch && expired.count(name) > 0;
    if (error == errors.end()) {
      if (is_invalid)
        fail(0, "an invalid request of " + label(name) + " was reported and not found");
      if (is_mismatch) fail(0, "a mismatch of " + label(name) + " was reported and not found");
      if (is_timeout) fail(0, "a timeout of " + label(name) + " was reported and not found");
      continue;
    }
    const Failure& failure = *error->second;
    if (failure.text.find(label(name)) == std::string::npos) {
      fail(0, "an error does not name the tensor: " + failure.text);
    }
    if (failure.kind == ErrorKind::InvalidArgument && is_invalid) {
      check_invalid_request(name, failure.text, verdict.exchange);
    } else if (failure.kind == ErrorKind::Mismatch && is_mismatch) {
      check_mismatch(name, failure.text, verdict.exchange);
    } else if (failure.kind == ErrorKind::Timeout && is_timeout) {
      check_timeout(name, failure.text, verdict.exchange);
    } else {
      fail(0, "an error is not deserved: " + failure.text);
    }
    errors.erase(error);
  }
  if (!errors.empty())
    fail(0, "an error without anything pending: " + errors.begin()->second->text);
}

std::map<int, std::vector<int>> Oracle::seen_variants(int name, std::uint64_t exchange) const {
  std::map<int, std::vector<int>> ranks_of_variant;
  for (int rank = 0; rank < scenario_.ranks; ++rank) {
    for (const Seen::Use& use : at(rank).seen[exchange % 2].pending) {
      if (use.name == name) ranks_of_variant[use.variant].push_back(rank);
    }
  }
  return ranks_of_variant;
}

/// The text must state the problem, and all ranks that submitted this invalid request.
void Oracle::check_invalid_request(int name, const std::string& text,
                                   std::uint64_t exchange) const {
  const auto lists = ranks_in(text);
  for (const auto& [variant, ranks] : seen_variants(name, exchange)) {
    const std::string& reason = request(name, variant).invalid_reason;
    const bool is_named = !reason.empty() && text.find(reason) != std::string::npos;
    if (is_named && lists.size() == 1 && lists[0] == to_world(ranks)) return;
  }
  fail(0, "it does not say what is wrong on which ranks: " + text);
}

/// The text must have two lists of ranks, each with all ranks that submitted one variant.
void Oracle::check_mismatch(int name, const std::string& text, std::uint64_t exchange) const {
  const auto ranks_of_variant = seen_variants(name, exchange);
  const auto lists = ranks_in(text);
  if (lists.size() != 2 || lists[0] == lists[1]) fail(0, "two groups of ranks are due in: " + text);
  for (const auto& list : lists) {
    const bool is_right =
        std::any_of(ranks_of_variant.begin(), ranks_of_variant.end(),
                    [&](const auto& variant) { return to_world(variant.second) == list; });
    if (!is_right) fail(0, "wrong ranks in: " + text);
  }
}

/// First the ranks whose deadline passed, then those that had not submitted it, if any.
void Oracle::check_timeout(int name, const std::string& text, std::uint64_t exchange) const {
  std::vector<int> expired;
  std::vector<int> missing;
  for (int rank = 0; rank < scenario_.ranks; ++rank) {
    const Seen& seen = at(rank).seen[exchange % 2];
    const auto use = std::find_if(seen.pending.begin(), seen.pending.end(),
                                  [&](const Seen::Use& found) { return found.name == name; });
    if (use != seen.pending.end() && use->is_expired) expired.push_back(rank);
    if (use == seen.pending.end() && !seen.is_joined) missing.push_back(rank);
  }
  std::vector<std::vector<int>> due{to_world(expired)};
  if (!missing.empty()) due.push_back(to_world(missing));
  if (ranks_in(text) != due) fail(0, "wrong ranks in: " + text);
}

void Oracle::check_ending_text(ErrorKind kind, const std::string& text) const {
  const auto lists = ranks_in(text);
  if (lists.size() == 1 && lists[0].size() == 1) {
    for (int rank = 0; rank < scenario_.ranks; ++rank) {
      const Rank& r = at(rank);
      const bool is_cause =
          kind == ErrorKind::PeerLost ? r.is_lost || r.is_frozen : r.is_shutting_down;
      if (is_cause && scenario_.world_ranks[static_cast<std::size_t>(rank)] == lists[0][0]) return;
    }
  }
  fail(0, "it does not name a rank that is to blame: " + text);
}

void Oracle::check_stall(const Verdict::Stall& stall, std::uint64_t exchange) {
  const int name = std::stoi(stall.name.substr(1));
  std::vector<int> waiting;
  std::vector<int> missing;
  for (int rank = 0; rank < scenario_.ranks; ++rank) {
    const Seen& seen = at(rank).seen[exchange % 2];
    const bool is_waiting = std::any_of(seen.pending.begin(), seen.pending.end(),
                                        [&](const Seen::Use& use) { return use.name == name; });
    if (is_waiting) waiting.push_back(rank);
    if (PendingUse* use = pending(at(rank), name); is_waiting && use != nullptr)
      use->is_reported = true;
    if (!is_waiting && !seen.is_joined) missing.push_back(rank);
  }
  if (stall.waiting_ranks != waiting || stall.missing_ranks != missing) {
    fail(0, "a stall report of " + label(name) + " names the wrong ranks");
  }
}

std::vector<int> Oracle::to_world(const std::vector<int>& ranks) const {
  std::vector<int> world;
  for (const int rank : ranks) {
    world.push_back(scenario_.world_ranks[static_cast<std::size_t>(rank)]);
  }
  return world;
}

// --- promptness ---

// A request that all ranks have submitted must end within the patience,
// and immediately if every rank's caller waits for it (rule 4). As a complete prediction of
// something else may hold the latter back (rule 5), it is judged only if nothing else is pending.

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

// --- the end, when no more events are possible: no use that is due may still wait ---

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

// The Oracle on outcomes: every rank runs the same batches, and a name's k-th use has the same
// outcome on all ranks.

#include <algorithm>
#include <set>

#include "support/protocol/oracle.hpp"

namespace kolo::simulator {

using runtime::Coordinator;
using runtime::Request;
using runtime::UseId;
using runtime::Verdict;

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

}  // namespace kolo::simulator

// Negotiation at the end of an exchange (rule 8): reports go up the tree, the verdict comes down.
#include <utility>
#include <variant>
#include <vector>

#include "runtime/protocol/coordinator.hpp"

namespace kolo::runtime {

void Coordinator::begin_negotiation() {
  ++counters_.negotiations;
  silent_since_ = kNever;
  exchange_.negotiation = Exchange::Negotiation{own_report(), tree_.children, false};
  pending_.mark_reported();
  for (auto& [child, report] : std::exchange(exchange_.early_reports, {})) {
    on_message(child, std::move(report));
  }
  continue_negotiation();
}

Report Coordinator::own_report() const {
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
  for (const int bit : verdict.evicted) {
    table_.remove(bit);
    history_.forget(bit);
    // Submitted after this rank's report, or evicted in favour of requests that all ranks have.
    pending_.withdraw_bit(bit);
  }
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

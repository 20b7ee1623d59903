#include "support/protocol/simulation.hpp"

#include <algorithm>
#include <ostream>

namespace kolo::simulator {

using runtime::Coordinator;
using runtime::HeaderExchange;
using runtime::HeaderExchangeMessage;
using runtime::Tree;
using runtime::TreeHeaderExchange;

namespace {

/// Far more than the largest scenario needs.
constexpr std::uint64_t kMaxEvents = 3'000'000;

}  // namespace

Result simulate(const Scenario& scenario, std::ostream* trace) {
  return Simulation(scenario, trace).run();
}

Simulation::Simulation(const Scenario& scenario, std::ostream* trace)
    : scenario_(scenario),
      trace_(trace),
      oracle_(scenario),
      random_(scenario.seed),
      memory_(scenario.ranks),
      ranks_(static_cast<std::size_t>(scenario.ranks)),
      messages_(static_cast<std::size_t>(scenario.ranks * scenario.ranks)),
      stores_(static_cast<std::size_t>(scenario.ranks * scenario.ranks)) {
  Time longest_timeout{0};
  for (int rank = 0; rank < scenario.ranks; ++rank) {
    Coordinator::Options options;
    options.rank = rank;
    options.set = {"world", scenario.world_ranks};
    options.tree_width = scenario.tree_width;
    options.patience = scenario.patience;
    options.stall_warn = scenario.stall_warn;
    options.lost_after = scenario.lost_after;
    options.lost_in_shutdown_after = scenario.lost_after;
    options.table = {scenario.table_capacity, scenario.table_bits};
    options.fusion_bytes = scenario.fusion_bytes;
    at(rank).core = std::make_unique<Coordinator>(std::move(options));
    if (scenario.by_messages) {
      at(rank).header_exchange = std::make_unique<TreeHeaderExchange>(
          rank, scenario.ranks, Tree(rank, scenario.ranks, scenario.tree_width),
          [this, rank](int to, const HeaderExchangeMessage& message) {
            transmit(messages_, Kind::Arrival, rank, to, Message(message));
            return std::size_t{0};
          });
    } else {
      at(rank).header_exchange =
          std::make_unique<SlotHeaderExchange>(rank, memory_, [this, rank](const Store& store) {
            for (int to = 0; to < scenario_.ranks; ++to) {
              if (to != rank) transmit(stores_, Kind::Store, rank, to, store);
            }
          });
    }
    at(rank).in_flight.resize(scenario.names.size());
    schedule(delay(scenario.delays.wake), Kind::Call, rank);
    for (const Step& step : scenario.programs[static_cast<std::size_t>(rank)]) {
      if (step.time != kNever) longest_timeout = std::max(longest_timeout, step.time);
    }
  }
  quiet_time_ = 4 * (longest_timeout + scenario.patience + scenario.lost_after +
                     scenario.delays.detection + scenario.delays.longest);
}

Result Simulation::run() {
  if (trace_ != nullptr) *trace_ << scenario_.title << "\n";
  Result result;
  try {
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.at;
      if (now_ - last_progress_ > quiet_time_) {
        if (scenario_.stall_warn != kNever) break;
        throw Violation("the ranks are busy though nothing moves any more");
      }
      if (++event_count_ > kMaxEvents) throw Violation("there is no end to it");
      handle(event);
    }
    check_end();
  } catch (const std::exception& error) {
    result.violation = error.what();
  }
  for (int rank = 0; rank < scenario_.ranks; ++rank) {
    const Rank& r = at(rank);
    const Coordinator::Counters& counters = r.core->counters();
    result.exchanges = std::max(result.exchanges, counters.exchanges);
    result.negotiations = std::max(result.negotiations, counters.negotiations);
    result.fruitless_exchanges = std::max(result.fruitless_exchanges, counters.fruitless_exchanges);
    result.wake_up_requests += counters.wake_up_requests;
    result.finished +=
        r.next_step == scenario_.programs[static_cast<std::size_t>(rank)].size() ? 1 : 0;
  }
  result.events = event_count_;
  result.outcomes = oracle_.outcome_count();
  return result;
}

// --- time ---

void Simulation::schedule(Time delay, Kind kind, int rank, int from, std::uint64_t number) {
  events_.push({now_ + delay, order_++, kind, rank, from, number});
}

void Simulation::schedule_progress(int rank, Time at_time) {
  Rank& r = at(rank);
  if (at_time >= r.next_progress) return;
  r.next_progress = at_time;
  events_.push({at_time, order_++, Kind::Progress, rank, -1, 0});
}

void Simulation::wake(int rank) { schedule_progress(rank, now_ + delay(scenario_.delays.wake)); }

Time Simulation::delay(Time bound) {
  const Delays& delays = scenario_.delays;
  if (delays.long_one_in > 0 && random_.one_in(delays.long_one_in)) {
    bound = std::max(bound, delays.longest);
  }
  return Time{1 + random_.below(bound.count() + 1)};
}

template <class T>
void Simulation::transmit(std::vector<Channel<T>>& channels, Kind kind, int from, int to, T what) {
  Channel<T>& way = channels[channel(from, to)];
  way.last_arrival = std::max(way.last_arrival, now_ + delay(scenario_.delays.transfer));
  way.in_transit.push_back(std::move(what));
  events_.push({way.last_arrival, order_++, kind, to, from, 0});
}

template void Simulation::transmit(std::vector<Channel<Message>>&, Kind, int, int, Message);

void Simulation::handle(const Event& event) {
  Rank& r = at(event.rank);
  switch (event.kind) {
    case Kind::Call:
      if (r.is_running) call(event.rank);
      break;
    case Kind::Progress:
      if (event.at != r.next_progress) break;  // superseded by an earlier one
      r.next_progress = kNever;
      if (r.is_running) make_progress(event.rank);
      break;
    case Kind::Arrival: {
      auto& in_transit = messages_[channel(event.from, event.rank)].in_transit;
      if (in_transit.empty()) break;  // lost with its sender
      r.mail.emplace_back(event.from, std::move(in_transit.front()));
      in_transit.pop_front();
      wake(event.rank);
      break;
    }
    case Kind::Store: {
      auto& in_transit = stores_[channel(event.from, event.rank)].in_transit;
      SlotHeaderExchange& header_exchange = static_cast<SlotHeaderExchange&>(*r.header_exchange);
      const Store store = std::move(in_transit.front());
      in_transit.pop_front();
      header_exchange.on_store(event.from, store);
      // A step that sees only some headers does nothing, so it is simulated only occasionally.
      const bool matters = store.posted == 0 || header_exchange.has_all(r.core->exchange());
      if (matters || random_.one_in(16)) wake(event.rank);
      break;
    }
    case Kind::DataDone:
      if (r.is_running) finish_data(event.rank, event.number);
      break;
    case Kind::DataCheck:
      if (r.is_running && !r.batches.empty() && r.batches.front().number == event.number) {
        find_silent(event.rank);
      }
      break;
    case Kind::Death:
      if (r.is_running && !r.header_exchange->has_left(event.from) && !r.dead_peer) {
        r.dead_peer = HeaderExchange::Loss{event.from, "died: its process has ended"};
        wake(event.rank);
      }
      break;
  }
}

// --- faults ---

/// Whether the rank survives one more step.
bool Simulation::survives_step(int rank) {
  Rank& r = at(rank);
  const int steps = ++r.steps;
  for (const Fault& fault : scenario_.faults) {
    if (fault.rank == rank && fault.after == steps) inject_fault(rank, fault.kind);
  }
  return r.is_running;
}

void Simulation::inject_fault(int rank, Fault::Kind kind) {
  Rank& r = at(rank);
  last_progress_ = now_;
  r.is_running = false;
  const std::size_t moved = r.batch_count - r.batches.size();  // it has done its part of these
  for (std::size_t i = moved; i < data_.size(); ++i) data_[i].is_broken |= random_.one_in(2);
  if (kind == Fault::Kind::Freeze) {
    print(rank, "freezes");
    oracle_.froze(rank);
    if (!r.has_left) frozen_.push_back(rank);
    for (int other = 0; other < scenario_.ranks; ++other) {
      if (!at(other).batches.empty()) watch_data(other);
    }
    return;
  }
  print(rank, "dies");
  oracle_.died(rank);
  if (kind == Fault::Kind::DieWithMessage)
    r.header_exchange->publish_lost({rank, "ended: an exception"});
  for (int other = 0; other < scenario_.ranks; ++other) {
    if (other == rank) continue;
    // Messages in transit may be lost with the sender, the latest first.
    auto& in_transit = messages_[channel(rank, other)].in_transit;
    if (random_.one_in(2) && !in_transit.empty()) {
      in_transit.resize(static_cast<std::size_t>(random_.below(std::ssize(in_transit))));
    }
    schedule(delay(scenario_.delays.detection), Kind::Death, other, rank);
  }
}

// --- the end ---

void Simulation::check_end() {
  std::vector<const Coordinator*> cores;
  for (const Rank& rank : ranks_) cores.push_back(rank.core.get());
  oracle_.finish(cores);
  for (int rank = 0; rank < scenario_.ranks; ++rank) {
    Rank& r = at(rank);
    if (!r.is_running) continue;
    const std::string who = "rank " + std::to_string(rank);
    if (!r.batches.empty() && frozen_.empty()) throw Violation(who + ": a batch never ends");
    const auto& program = scenario_.programs[static_cast<std::size_t>(rank)];
    if (scenario_.must_finish && r.next_step < program.size()) {
      throw Violation(who + ": its program does not come to its end");
    }
    if (r.settled && r.next_step == program.size()) {
      const auto& counters = r.core->counters();
      const auto expect_unchanged = [&](const char* what, std::uint64_t before,
                                        std::uint64_t after) {
        if (before != after) {
          throw Violation(who + ": a settled program still has " + std::to_string(after - before) +
                          " " + what);
        }
      };
      // A single rank runs everything immediately, and has no peers for a wake-up request.
      if (scenario_.ranks > 1) {
        expect_unchanged("wake-up requests", r.settled->wake_up_requests,
                         counters.wake_up_requests);
      }
      expect_unchanged("negotiations", r.settled->negotiations, counters.negotiations);
      expect_unchanged("fruitless exchanges", r.settled->fruitless_exchanges,
                       counters.fruitless_exchanges);
    }
  }
}

void Simulation::print(int rank, const std::string& text) {
  if (trace_ == nullptr) return;
  *trace_ << now_.count() / 1000 << " us  rank " << rank << "  e" << at(rank).core->exchange()
          << "  " << text << "\n";
}

}  // namespace kolo::simulator

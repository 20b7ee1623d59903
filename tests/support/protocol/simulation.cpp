#include "support/protocol/simulation.hpp"

#include <algorithm>
#include <ostream>

namespace kolo::simulator {

using runtime::ControlMessage;
using runtime::Coordinator;
using runtime::Header;
using runtime::HeaderExchange;
using runtime::HeaderExchangeMessage;
using runtime::LostRank;
using runtime::Tree;
using runtime::TreeHeaderExchange;
using runtime::UseId;

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
        r.dead_peer = LostRank{event.from, "died: its process has ended"};
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

// --- a rank's engine: how a progress step uses the coordinator ---

void Simulation::make_progress(int rank) {
  Rank& r = at(rank);
  if (!survives_step(rank)) return;
  take_orders(rank);
  if (!read_mail(rank)) return;
  notice_losses(rank);
  if (!r.is_running || !advance(rank)) return;
  if (r.core->is_closed() && r.batches.empty() && !r.has_left && !r.has_declared_loss) {
    r.header_exchange->leave();
    r.has_left = true;
  }
  if (const Time next = r.core->next_time(); next != kNever) {
    schedule_progress(rank, std::max(next, now_) + delay(scenario_.delays.wake));
  }
}

void Simulation::take_orders(int rank) {
  Rank& r = at(rank);
  for (; !r.orders.empty(); r.orders.pop_front()) {
    const Order& order = r.orders.front();
    switch (order.kind) {
      case Step::Kind::Submit: {
        const Use& use = r.uses[order.use];
        print(rank, "submits " + request(use.name, order.variant).name + " variant " +
                        std::to_string(order.variant));
        oracle_.submitted(rank, order.use, use.name, order.variant, order.deadline, now_,
                          r.core->exchange());
        r.core->submit(order.use, request(use.name, order.variant), now_, order.deadline);
        last_progress_ = now_;
        break;
      }
      case Step::Kind::Wait:
        print(rank, "waits for use " + std::to_string(order.use));
        r.core->wait_for(order.use);
        oracle_.awaited(rank, r.uses[order.use].name, now_);
        break;
      case Step::Kind::Join:
        print(rank, "joins");
        oracle_.joined(rank, order.use, now_, r.core->exchange());
        r.core->join(order.use);
        last_progress_ = now_;
        break;
      default:
        print(rank, "shuts down");
        oracle_.shut_down(rank);
        r.core->shut_down();
        last_progress_ = now_;
    }
  }
}

/// False if the rank died.
bool Simulation::read_mail(int rank) {
  Rank& r = at(rank);
  while (!r.mail.empty()) {
    auto [from, message] = std::move(r.mail.front());
    r.mail.pop_front();
    if (const auto* header_exchange_message = std::get_if<HeaderExchangeMessage>(&message)) {
      static_cast<runtime::TreeHeaderExchange&>(*r.header_exchange)
          .on_message(from, *header_exchange_message);
      continue;
    }
    r.core->on_message(from, std::get<ControlMessage>(std::move(message)));
    // One verdict at a time: the oracle checks every exchange.
    if (r.core->exchange() != oracle_.exchange(rank) && !carry_out(rank, 0)) return false;
  }
  return true;
}

void Simulation::notice_losses(int rank) {
  Rank& r = at(rank);
  if (r.has_declared_loss || r.has_left) return;
  if (const auto lost = r.header_exchange->lost()) {
    declare_lost(rank, *lost);
  } else if (r.dead_peer && !r.header_exchange->has_left(r.dead_peer->rank)) {
    declare_lost(rank, *r.dead_peer);
  }
}

/// False if the rank died, or pauses with work left.
bool Simulation::advance(int rank) {
  Rank& r = at(rank);
  std::uint64_t ran_in = 0;
  for (;;) {
    r.core->on_wake_up_request(r.header_exchange->highest_wake_up_request());
    if (!carry_out(rank, ran_in)) return false;
    if (!r.core->awaits_headers()) return true;
    if (random_.one_in(8)) {  // the thread is preempted
      wake(rank);
      return false;
    }
    ran_in = r.core->exchange();
    const std::optional<Header> merged = r.header_exchange->merged(ran_in);
    if (!merged) return true;
    print(rank, "has seen all headers");
    r.core->on_headers(*merged);
  }
}

/// Decides and acts. False if the rank died in between.
bool Simulation::carry_out(int rank, std::uint64_t ran_in) {
  Rank& r = at(rank);
  const Coordinator::Actions actions = r.core->decide(now_);
  oracle_.decided(rank, *r.core, actions, ran_in, now_);
  for (const Coordinator::Batch& batch : actions.run) {
    if (!survives_step(rank)) return false;
    Batch running{r.batch_count++, {}, false};
    std::string text = "runs batch " + std::to_string(running.number) + ":";
    for (const auto& item : batch.items) {
      text += " " + item.request->name;
      if (item.use) running.uses.push_back(*item.use);
    }
    print(rank, text);
    r.batches.push_back(std::move(running));
    start_data(rank);
  }
  for (const Coordinator::Failed& failed : actions.failed) {
    print(rank, "use " + std::to_string(failed.use) + " fails: " + failed.failure.text);
    complete(rank, failed.use);
  }
  if (actions.joined) complete(rank, actions.joined->use);
  if (actions.post) {
    if (!survives_step(rank)) return false;
    print(rank, std::string("posts") + (actions.post->has_unknown ? " NEW" : "") +
                    (actions.post->has_expired ? " EXPIRED" : "") +
                    (actions.post->has_stalled ? " STALLED" : "") +
                    (!actions.post->joined.none() ? " JOINED" : "") +
                    (actions.post->shutdown_rank ? " SHUTDOWN" : ""));
    r.header_exchange->post(*actions.post);
  }
  if (actions.wake_up_request) {
    if (!survives_step(rank)) return false;
    print(rank, "requests a wake-up");
    r.header_exchange->request_wake_up(*actions.wake_up_request);
  }
  for (const auto& [to, message] : actions.send) {
    if (!survives_step(rank)) return false;
    print(rank, std::string("sends a ") +
                    (std::holds_alternative<runtime::Verdict>(message) ? "verdict" : "report") +
                    " to rank " + std::to_string(to));
    transmit(messages_, Kind::Arrival, rank, to, Message(message));
  }
  if (actions.find_silent) find_silent(rank);
  return r.is_running;
}

// --- losses ---

void Simulation::declare_lost(int rank, const LostRank& lost) {
  Rank& r = at(rank);
  if (r.has_declared_loss || r.has_left) return;
  print(rank, "learns that rank " + std::to_string(lost.rank) + " " + lost.how);
  r.has_declared_loss = true;
  r.header_exchange->publish_lost(lost);
  oracle_.notified_of_loss(rank);
  r.core->on_lost(lost.rank, lost.how);
  for (const Batch& batch : std::exchange(r.batches, {})) {
    for (const UseId use : batch.uses) complete(rank, use);
  }
  carry_out(rank, 0);
}

void Simulation::find_silent(int rank) {
  for (const int frozen : frozen_) {
    if (!at(frozen).has_left) {
      declare_lost(rank, {frozen, "does not answer"});
      return;
    }
  }
}

// --- data: a batch ends once all ranks have moved their part; the next one waits for it ---

void Simulation::start_data(int rank) {
  Rank& r = at(rank);
  if (r.batches.empty() || r.batches.front().is_started) return;
  Batch& batch = r.batches.front();
  batch.is_started = true;
  if (data_.size() <= batch.number) data_.resize(batch.number + 1);
  if (!frozen_.empty()) watch_data(rank);
  if (++data_[batch.number].started < scenario_.ranks) return;
  for (int other = 0; other < scenario_.ranks; ++other) {
    schedule(delay(scenario_.delays.data), Kind::DataDone, other, -1, batch.number);
  }
}

/// Schedules a check, so that ranks which do not move their part are not awaited forever.
void Simulation::watch_data(int rank) {
  schedule(scenario_.lost_after + delay(scenario_.delays.wake), Kind::DataCheck, rank, -1,
           at(rank).batches.front().number);
}

void Simulation::finish_data(int rank, std::uint64_t number) {
  Rank& r = at(rank);
  if (data_[number].is_broken || r.batches.empty() || r.batches.front().number != number) return;
  const Batch batch = std::move(r.batches.front());
  r.batches.pop_front();
  for (const UseId use : batch.uses) complete(rank, use);
  start_data(rank);
  wake(rank);
}

// --- a rank's program: its submissions and waits ---

/// Runs the program until a call blocks or takes time.
void Simulation::call(int rank) {
  Rank& r = at(rank);
  const Program& program = scenario_.programs[static_cast<std::size_t>(rank)];
  if (r.blocked_on) {
    if (!r.uses[*r.blocked_on].is_done) return;
    r.blocked_on.reset();
  }
  while (r.next_step < program.size()) {
    if (!survives_step(rank)) return;
    if (!execute(rank, program[r.next_step])) return;
  }
}

/// False if the program must continue later.
bool Simulation::execute(int rank, const Step& step) {
  Rank& r = at(rank);
  switch (step.kind) {
    case Step::Kind::Submit: {
      auto& in_flight = r.in_flight[static_cast<std::size_t>(step.name)];
      if (in_flight) return !wait_for(rank, *in_flight);
      const UseId use = r.uses.size();
      r.uses.push_back({step.name});
      in_flight = use;
      r.orders.push_back(
          {step.kind, use, step.variant, step.time == kNever ? kNever : now_ + step.time});
      wake(rank);
      break;
    }
    case Step::Kind::Wait:
      if (const auto& use = r.in_flight[static_cast<std::size_t>(step.name)];
          use && wait_for(rank, *use)) {
        return false;
      }
      break;
    case Step::Kind::WaitAll:
      for (const auto& use : r.in_flight) {
        if (use && wait_for(rank, *use)) return false;
      }
      break;
    case Step::Kind::Compute:
      ++r.next_step;
      schedule(step.time, Kind::Call, rank);
      last_progress_ = std::max(last_progress_, now_ + step.time);
      return false;
    case Step::Kind::Join: {
      const UseId use = r.uses.size();
      r.uses.push_back({-1});
      r.orders.push_back({step.kind, use, 0, kNever});
      wake(rank);
      r.blocked_on = use;
      ++r.next_step;
      return false;
    }
    case Step::Kind::ShutDown:
      r.orders.push_back({step.kind, 0, 0, kNever});
      wake(rank);
      break;
    case Step::Kind::Settled: r.settled = r.core->counters(); break;
  }
  ++r.next_step;
  if (step.kind != Step::Kind::Submit) return true;
  schedule(delay(scenario_.delays.call), Kind::Call, rank);
  return false;
}

/// True if the program is now blocked.
bool Simulation::wait_for(int rank, UseId use) {
  Rank& r = at(rank);
  if (r.uses[use].is_done) return false;
  r.blocked_on = use;
  r.orders.push_back({Step::Kind::Wait, use, 0, kNever});
  wake(rank);
  return true;
}

void Simulation::complete(int rank, UseId use) {
  Rank& r = at(rank);
  if (r.uses[use].is_done) throw Violation("a use ended twice");
  r.uses[use].is_done = true;
  if (const int name = r.uses[use].name; name >= 0) {
    r.in_flight[static_cast<std::size_t>(name)].reset();
  }
  last_progress_ = now_;
  if (r.blocked_on == use) schedule(delay(scenario_.delays.wake), Kind::Call, rank);
}

}  // namespace kolo::simulator

// A rank's lane: how a progress step uses the coordinator.

#include <algorithm>

#include "support/protocol/simulation.hpp"

namespace kolo::simulator {

using runtime::ControlMessage;
using runtime::Coordinator;
using runtime::Header;
using runtime::HeaderExchange;
using runtime::HeaderExchangeMessage;
using runtime::UseId;

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
  if (const auto loss = r.header_exchange->lost()) {
    declare_lost(rank, *loss);
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

void Simulation::declare_lost(int rank, const HeaderExchange::Loss& loss) {
  Rank& r = at(rank);
  if (r.has_declared_loss || r.has_left) return;
  print(rank, "learns that rank " + std::to_string(loss.rank) + " " + loss.how);
  r.has_declared_loss = true;
  r.header_exchange->publish_lost(loss);
  oracle_.notified_of_loss(rank);
  r.core->on_lost(loss.rank, loss.how);
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

}  // namespace kolo::simulator

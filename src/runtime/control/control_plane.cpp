#include "runtime/control/control_plane.hpp"

#include <string>
#include <utility>
#include <variant>

#include "base/intentional_leak.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "kolo/error.hpp"
#include "runtime/control/window_header_exchange.hpp"

namespace kolo::runtime {
namespace {

/// Runs `action`; errors that it throws name the other rank.
template <class Action>
auto naming(const char* direction, int rank, Action action) {
  try {
    return action();
  } catch (const BackendError& error) {
    throw BackendError(std::string(direction) + " rank " + std::to_string(rank) +
                       " of the process set: " + error.what());
  }
}

}  // namespace

ControlMailbox::~ControlMailbox() {
  for (Packets* const packets : {&outgoing_, &incoming_}) {
    for (Packet& packet : *packets) leak_intentionally(std::move(packet.buffer));
  }
}

std::size_t ControlMailbox::send(int rank, const WireMessage& message) {
  Packets one = take_spare(rank);
  Packet& packet = one.front();
  packet.buffer = encode(message, std::move(packet.buffer));
  packet.transfer =
      naming("to", rank, [&] { return communicator_.send(packet.buffer, rank, tag_); });
  outgoing_.splice(outgoing_.end(), one);
  return packet.buffer.size();
}

std::optional<std::pair<int, WireMessage>> ControlMailbox::poll() {
  collect_sent();
  if (!receive_next()) return std::nullopt;
  Packet& packet = incoming_.front();
  spare_.splice(spare_.end(), incoming_);
  return std::pair(packet.rank, naming("from", packet.rank, [&] {
                     return decode(packet.buffer, communicator_.size());
                   }));
}

bool ControlMailbox::is_idle() {
  collect_sent();
  return outgoing_.empty();
}

ControlMailbox::Packets ControlMailbox::take_spare(int rank) {
  Packets one;
  if (spare_.empty()) {
    one.emplace_back();
  } else {
    one.splice(one.end(), spare_, spare_.begin());
  }
  one.front().rank = rank;
  return one;
}

void ControlMailbox::collect_sent() {
  for (auto next = outgoing_.begin(); next != outgoing_.end();) {
    const auto packet = next++;
    try {
      const bool is_sent = naming("to", packet->rank, [&] { return packet->transfer.ready(); });
      if (is_sent) spare_.splice(spare_.end(), outgoing_, packet);
    } catch (...) {
      leak_intentionally(std::move(packet->buffer));
      outgoing_.erase(packet);
      throw;
    }
  }
}

/// Continues the receive in flight or starts the next one; true once the message has arrived.
bool ControlMailbox::receive_next() {
  if (incoming_.empty()) {
    const auto envelope = communicator_.probe(tag_);
    if (!envelope) return false;
    Packets one = take_spare(envelope->source);
    Packet& packet = one.front();
    packet.buffer.resize(envelope->size_bytes);
    packet.transfer = naming("from", packet.rank, [&] {
      return communicator_.receive(packet.buffer, packet.rank, tag_);
    });
    incoming_ = std::move(one);
  }
  try {
    Packet& packet = incoming_.front();
    return naming("from", packet.rank, [&] { return packet.transfer.ready(); });
  } catch (...) {
    incoming_.clear();
    throw;
  }
}

namespace {

constexpr int kControlTag = Communicator::kTagCount - 1;

Coordinator::Options coordinator_options(const SetContext& set, ControlPlane::Parts& parts) {
  const Config& config = set.config;
  Coordinator::Options options;
  options.rank = parts.communicator->rank();
  options.to_world_clock = parts.to_world_clock;
  options.activity = std::move(parts.activity);
  options.set = {set.name, set.world_ranks};
  options.tree_width = config.tuning.tree_width;
  options.patience = config.tuning.patience;
  options.stall_warn = config.stall_warn;
  options.lost_after = set.longest_silence();
  options.table.capacity = config.tuning.table_capacity;
  options.fusion_bytes = config.fusion ? config.fusion_bytes : 0;
  return options;
}

}  // namespace

ControlPlane::ControlPlane(Parts parts, const SetContext& set, comm::World& world)
    : set_(set),
      coordinator_(coordinator_options(set, parts)),
      communicator_(std::move(parts.communicator)),
      mailbox_(*communicator_, kControlTag) {
  if (parts.window != nullptr) {
    header_exchange_ = std::make_unique<WindowHeaderExchange>(std::move(parts.window));
  } else {
    const int rank = communicator_->rank();
    const int size = communicator_->size();
    auto by_messages = std::make_unique<TreeHeaderExchange>(
        rank, size, Tree(rank, size, set.config.tuning.tree_width),
        [this](int to, const HeaderExchangeMessage& message) {
          return mailbox_.send(to, message);
        });
    by_messages_ = by_messages.get();
    header_exchange_ = std::move(by_messages);
  }
  watch_.emplace(set, world, *header_exchange_, std::move(parts.report_lost));
  if (by_messages_ != nullptr) {
    heartbeats_.emplace(communicator_->rank(), set, world.topology(), *by_messages_,
                        std::move(parts.heartbeats));
  }
}

bool ControlPlane::receive() {
  header_exchange_->beat();
  // If headers are in shared memory, no rank sends messages before a negotiation. A long message
  // may need its sender until it has arrived, if MPI cannot read another process's memory.
  if (by_messages_ == nullptr && !coordinator_.is_negotiating() && mailbox_.is_idle()) return false;
  bool has_received = false;
  while (auto mail = mailbox_.poll()) {
    has_received = true;
    auto& [from, message] = *mail;
    if (auto* negotiation = std::get_if<ControlMessage>(&message)) {
      coordinator_.on_message(from, std::move(*negotiation));
    } else if (by_messages_ != nullptr) {
      by_messages_->on_message(from, std::get<HeaderExchangeMessage>(message));
    }
  }
  return has_received;
}

Coordinator::Actions ControlPlane::decide(Clock::time_point now) {
  coordinator_.on_wake_up_request(header_exchange_->highest_wake_up_request());
  return coordinator_.decide(Time{now.time_since_epoch()});
}

void ControlPlane::send(Coordinator::Actions& actions) {
  if (actions.post) header_exchange_->post(*actions.post);
  if (actions.wake_up_request) header_exchange_->request_wake_up(*actions.wake_up_request);
  for (auto& [to, message] : actions.send) mailbox_.send(to, std::move(message));
}

bool ControlPlane::end_exchange() {
  if (!coordinator_.awaits_headers()) return false;
  const std::optional<Header> merged = header_exchange_->merged(coordinator_.exchange());
  if (!merged) return false;
  coordinator_.on_headers(*merged);
  return true;
}

std::optional<LostRank> ControlPlane::find_lost(Clock::time_point now, bool needs_peers) {
  if (auto lost = watch_->check(now, needs_peers)) return lost;
  if (!heartbeats_ || has_left() || header_exchange_->lost()) return std::nullopt;
  const std::optional<LostRank> lost = heartbeats_->check(now);
  return lost ? watch_->announce(*lost, now) : std::nullopt;
}

void ControlPlane::declare_lost(const LostRank& lost) {
  heartbeats_.reset();
  try {
    header_exchange_->publish_lost(lost);
  } catch (...) {  // a message to a rank that cannot be reached either
    KOLO_LOG(Warn) << "process set " << set_.name
                   << ": cannot tell all ranks: " << text_of_current_exception();
  }
  watch_->report(lost);
  coordinator_.on_lost(lost.rank, lost.how, lost.kind);
}

void ControlPlane::leave() {
  header_exchange_->leave();
  heartbeats_.reset();
}

bool ControlPlane::have_all_left() const {
  if (!has_left() || mailbox_.is_sending()) return false;
  for (int rank = 0; rank < communicator_->size(); ++rank) {
    if (!header_exchange_->has_left(rank)) return false;
  }
  return true;
}

}  // namespace kolo::runtime

#include "runtime/control/control_mailbox.hpp"

#include <string>

#include "base/intentional_leak.hpp"
#include "kolo/error.hpp"

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

}  // namespace kolo::runtime

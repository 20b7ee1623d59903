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
  for (Parcels* const parcels : {&outgoing_, &incoming_}) {
    for (Parcel& parcel : *parcels) leak_intentionally(std::move(parcel.buffer));
  }
}

std::size_t ControlMailbox::send(int rank, const WireMessage& message) {
  Parcels one = take_spare(rank);
  Parcel& parcel = one.front();
  parcel.buffer = encode(message, std::move(parcel.buffer));
  parcel.transfer =
      naming("to", rank, [&] { return communicator_.send(parcel.buffer, rank, tag_); });
  outgoing_.splice(outgoing_.end(), one);
  return parcel.buffer.size();
}

std::optional<std::pair<int, WireMessage>> ControlMailbox::poll() {
  collect_sent();
  if (!receive_next()) return std::nullopt;
  Parcel& parcel = incoming_.front();
  spare_.splice(spare_.end(), incoming_);
  return std::pair(parcel.rank, naming("from", parcel.rank, [&] {
                     return decode(parcel.buffer, communicator_.size());
                   }));
}

bool ControlMailbox::is_idle() {
  collect_sent();
  return outgoing_.empty();
}

ControlMailbox::Parcels ControlMailbox::take_spare(int rank) {
  Parcels one;
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
    const auto parcel = next++;
    try {
      const bool is_sent = naming("to", parcel->rank, [&] { return parcel->transfer.ready(); });
      if (is_sent) spare_.splice(spare_.end(), outgoing_, parcel);
    } catch (...) {
      leak_intentionally(std::move(parcel->buffer));
      outgoing_.erase(parcel);
      throw;
    }
  }
}

/// Continues the receive in flight or starts the next one; true once the message has arrived.
bool ControlMailbox::receive_next() {
  if (incoming_.empty()) {
    const auto envelope = communicator_.probe(tag_);
    if (!envelope) return false;
    Parcels one = take_spare(envelope->source);
    Parcel& parcel = one.front();
    parcel.buffer.resize(envelope->size_bytes);
    parcel.transfer = naming("from", parcel.rank, [&] {
      return communicator_.receive(parcel.buffer, parcel.rank, tag_);
    });
    incoming_ = std::move(one);
  }
  try {
    Parcel& parcel = incoming_.front();
    return naming("from", parcel.rank, [&] { return parcel.transfer.ready(); });
  } catch (...) {
    incoming_.clear();
    throw;
  }
}

}  // namespace kolo::runtime

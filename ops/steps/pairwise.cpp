#include "ops/steps/pairwise.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "ops/steps/local_steps.hpp"
#include "ops/steps/messages.hpp"

namespace kolo::ops {
namespace {

constexpr std::size_t kInFlight = 16;  // at least 2: both transfers of a step and segment

/// A segment that is sent to or received from `peer`.
struct Leg {
  bool is_send;
  int peer;
  Range range;
};

std::vector<Leg> plan_legs(const CollectiveCall& call, std::span<const Range> sends,
                           std::span<const Range> receives) {
  const int rank = call.communicator->rank();
  const int size = call.communicator->size();
  const std::size_t segment = segment_length(call);
  std::vector<Leg> legs;
  for (int step = 1; step < size; ++step) {
    const int to = (rank + step) % size;
    const int from = (rank + size - step) % size;
    const Range outgoing = sends[static_cast<std::size_t>(to)];
    const Range incoming = receives[static_cast<std::size_t>(from)];
    const std::size_t longest = std::max(outgoing.length, incoming.length);
    for (std::size_t i = 0; i < segment_count(longest, segment); ++i) {
      const Range received = segment_of(incoming, segment, i);
      if (received.length > 0) legs.push_back({false, from, received});
      const Range sent = segment_of(outgoing, segment, i);
      if (sent.length > 0) legs.push_back({true, to, sent});
    }
  }
  return legs;
}

}  // namespace

Task exchange_pairwise(CollectiveCall call, std::span<const Range> sends,
                       std::span<const Range> receives) {
  Communicator& communicator = *call.communicator;
  const std::vector<Leg> legs = plan_legs(call, sends, receives);
  std::array<Transfer, kInFlight> transfers;
  for (std::size_t i = 0; i < legs.size(); ++i) {
    const Leg& leg = legs[i];
    Transfer& transfer = transfers[i % kInFlight];
    co_await transfer;  // the previous leg in this place
    if (leg.is_send) {
      transfer = communicator.send(bytes_of(call, call.input, leg.range), leg.peer, kTag);
    } else {
      transfer = communicator.receive(bytes_of(call, call.output, leg.range), leg.peer, kTag);
    }
  }
  // While the last transfers are in flight.
  const auto self = static_cast<std::size_t>(communicator.rank());
  co_await copy_elements(call, bytes_of(call, call.input, sends[self]).data(),
                         bytes_of(call, call.output, receives[self]).data(), sends[self].length);
  for (Transfer& transfer : transfers) co_await transfer;
}

}  // namespace kolo::ops

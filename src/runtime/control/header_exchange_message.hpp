#pragma once

#include <cstdint>
#include <variant>

#include "runtime/protocol/header_exchange.hpp"

namespace kolo::runtime {

/// To the parent: the merged header of the sender's subtree.
struct HeaderUp {
  Header header;
  bool operator==(const HeaderUp&) const = default;
};

/// To the children: the merged header of all ranks.
struct HeaderDown {
  Header header;
  bool operator==(const HeaderDown&) const = default;
};

/// Some rank wants every rank to post its header of this exchange.
struct WakeUpRequest {
  std::uint64_t exchange = 0;
  bool operator==(const WakeUpRequest&) const = default;
};

/// The sender has left in an orderly way.
struct Left {
  bool operator==(const Left&) const = default;
};

/// Is the receiver's coordinator alive? The answer is a Heartbeat, unless it has left.
struct Ping {
  bool operator==(const Ping&) const = default;
};

/// The sender's coordinator is alive. The lowest ranks of nodes also send it without a Ping.
struct Heartbeat {
  bool operator==(const Heartbeat&) const = default;
};

/// The messages of a TreeHeaderExchange between ranks that share no memory.
using HeaderExchangeMessage =
    std::variant<HeaderUp, HeaderDown, WakeUpRequest, LostRank, Left, Ping, Heartbeat>;

}  // namespace kolo::runtime

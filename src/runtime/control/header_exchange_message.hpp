#pragma once

#include <cstdint>
#include <variant>

#include "runtime/protocol/header.hpp"
#include "runtime/protocol/header_exchange.hpp"

namespace kolo::runtime {

/// To the parent: the header of the sender's subtree.
struct HeaderUp {
  Header header;
  bool operator==(const HeaderUp&) const = default;
};

/// To the children: the header of all ranks.
struct HeaderDown {
  Header header;
  bool operator==(const HeaderDown&) const = default;
};

/// Some rank asks for this exchange.
struct WakeUpRequest {
  std::uint64_t exchange = 0;
  bool operator==(const WakeUpRequest&) const = default;
};

struct Lost {
  HeaderExchange::Loss loss;
  bool operator==(const Lost&) const = default;
};

/// The sender has left in good order.
struct Left {
  bool operator==(const Left&) const = default;
};

/// To be answered with a Pong: does the receiver's coordinator still work?
struct Ping {
  bool operator==(const Ping&) const = default;
};

struct Pong {
  bool operator==(const Pong&) const = default;
};

/// What the ranks tell one another where their header board goes by messages.
using HeaderExchangeMessage =
    std::variant<HeaderUp, HeaderDown, WakeUpRequest, Lost, Left, Ping, Pong>;

}  // namespace kolo::runtime

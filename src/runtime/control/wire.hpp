#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <variant>
#include <vector>

#include "runtime/control/header_exchange_message.hpp"
#include "runtime/protocol/negotiation.hpp"

namespace kolo::runtime {

/// All messages with which the ranks of a process set agree on what to run.
using WireMessage = std::variant<ControlMessage, HeaderExchangeMessage>;

/// Version of the format in wire.fbs; ranks of different versions cannot work together.
inline constexpr std::uint32_t kWireVersion = 8;

/// The message as bytes, in the memory of `buffer` if that is large enough.
std::vector<std::byte> encode(const WireMessage& message, std::vector<std::byte> buffer = {});

/// Decodes the message of another rank. Throws BackendError, naming the problem, for bytes that are
/// not a message, are damaged, or come from another version. A returned message is safe to use:
/// enums are in range, bits fit a request table, ranks are below `size`, and lists of ranks ascend.
WireMessage decode(const std::vector<std::byte>& bytes, int size = std::numeric_limits<int>::max());

}  // namespace kolo::runtime

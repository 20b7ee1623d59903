#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <variant>
#include <vector>

#include "runtime/control/header_exchange_message.hpp"
#include "runtime/protocol/negotiation.hpp"

namespace kolo::runtime {

/// All that the ranks of a process set tell one another to agree on what to run.
using WireMessage = std::variant<ControlMessage, HeaderExchangeMessage>;

/// Of the format in wire.fbs; ranks of different versions cannot work together.
inline constexpr std::uint32_t kWireVersion = 3;

/// The message as bytes, in the memory of `buffer` where that is large enough.
std::vector<std::byte> encode(const WireMessage& message, std::vector<std::byte> buffer = {});

/// The message that another rank encoded. Throws BackendError, which says what is wrong, for bytes
/// that are none, are damaged, or come from another version. A message that is returned is safe to
/// work with: enums are in range, bits fit a request table, ranks of the process set lie within its
/// `size`, and lists of them ascend.
WireMessage decode(const std::vector<std::byte>& bytes, int size = std::numeric_limits<int>::max());

}  // namespace kolo::runtime

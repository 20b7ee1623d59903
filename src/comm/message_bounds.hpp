#pragma once

#include <cstddef>

#include "kolo/communicator.hpp"

namespace kolo::comm {

/// Throws InvalidArgument for arguments that Communicator::send and receive do not accept.
void check_message(const Communicator& communicator, std::size_t size_bytes, int peer, int tag);

}  // namespace kolo::comm

#include "comm/message_bounds.hpp"

#include <string>

#include "kolo/error.hpp"

namespace kolo::comm {

void check_message(const Communicator& communicator, std::size_t size_bytes, int peer, int tag) {
  if (peer < 0 || peer >= communicator.size()) {
    throw InvalidArgument("message: rank " + std::to_string(peer) + " is not in 0 … " +
                          std::to_string(communicator.size() - 1));
  }
  if (tag < 0 || tag >= Communicator::kTagCount) {
    throw InvalidArgument("message: tag " + std::to_string(tag) + " is not in 0 … " +
                          std::to_string(Communicator::kTagCount - 1));
  }
  if (size_bytes > Communicator::kMaxMessageBytes) {
    throw InvalidArgument("message: " + std::to_string(size_bytes) + " bytes are more than " +
                          std::to_string(Communicator::kMaxMessageBytes) +
                          ". Cut it into segments.");
  }
}

}  // namespace kolo::comm

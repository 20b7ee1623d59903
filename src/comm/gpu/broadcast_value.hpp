#pragma once

#include <span>
#include <vector>

#include "base/intentional_leak.hpp"
#include "kolo/communicator.hpp"
#include "kolo/task.hpp"

namespace kolo::comm {

/// Sets a small `value` on all ranks to that of rank 0. Collective; uses the tag `tag`.
template <class T>
Task broadcast_value(Communicator& communicator, int tag, T& value) {
  if (communicator.rank() != 0) {
    co_await communicator.receive(std::as_writable_bytes(std::span(&value, 1)), 0, tag);
    co_return;
  }
  Outgoing<T> outgoing(value);
  std::vector<Transfer> transfers;
  for (int peer = 1; peer < communicator.size(); ++peer) {
    transfers.push_back(communicator.send(outgoing.bytes(), peer, tag));
  }
  for (Transfer& transfer : transfers) co_await transfer;
  outgoing.set_left();
}

}  // namespace kolo::comm

#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <utility>
#include <vector>

#include "kolo/communicator.hpp"
#include "runtime/control/wire.hpp"

namespace kolo::runtime {

/// Carries control messages among the ranks of a communicator, all under one tag that is its own.
/// No call blocks. Messages of one sender arrive in the order they were sent.
class ControlMailbox {
 public:
  struct Counters {
    std::uint64_t messages_sent = 0;
    std::uint64_t bytes_sent = 0;
    std::uint64_t messages_received = 0;
    std::uint64_t bytes_received = 0;
  };

  /// `communicator` outlives the mailbox.
  ControlMailbox(Communicator& communicator, int tag) : communicator_(communicator), tag_(tag) {}
  /// Sends and a receive under way are abandoned, with their buffers kept until the process ends.
  ~ControlMailbox();
  ControlMailbox(const ControlMailbox&) = delete;  // MPI refers to its buffers
  ControlMailbox& operator=(const ControlMailbox&) = delete;

  /// Returns the bytes of the encoded message. Throws BackendError naming the rank where it cannot
  /// be reached.
  std::size_t send(int rank, const WireMessage& message);

  /// The next message that has arrived, and its sender. Throws BackendError naming the rank for a
  /// message that cannot be decoded, and for a send or receive that failed; that one is given up,
  /// the mailbox stays usable.
  std::optional<std::pair<int, WireMessage>> poll();

  /// Looks at the sends under way: true once there is none. Throws like `poll`.
  bool is_idle();

  const Counters& counters() const { return counters_; }

 private:
  // Members in this order: a transfer is given up before the buffer it writes to is freed.
  struct Parcel {
    int rank = 0;
    std::vector<std::byte> buffer;
    Transfer transfer;
  };
  using Parcels = std::list<Parcel>;  // they move between lists and stay where they are

  Parcels take_spare(int rank);
  void collect_sent();
  bool receive_next();

  Communicator& communicator_;
  const int tag_;
  Parcels outgoing_;
  Parcels incoming_;  // one at most, or order would be lost
  Parcels spare_;
  Counters counters_;
};

}  // namespace kolo::runtime

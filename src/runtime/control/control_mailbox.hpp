#pragma once

#include <cstddef>
#include <list>
#include <optional>
#include <utility>
#include <vector>

#include "kolo/communicator.hpp"
#include "runtime/control/wire.hpp"

namespace kolo::runtime {

/// Sends and receives control messages among the ranks of a communicator, under a separate tag.
/// No call blocks. Messages of one sender arrive in the order in which they were sent.
class ControlMailbox {
 public:
  /// `communicator` outlives the mailbox.
  ControlMailbox(Communicator& communicator, int tag) : communicator_(communicator), tag_(tag) {}
  /// Abandons transfers in flight. Their buffers leak intentionally: MPI may still use them.
  ~ControlMailbox();
  ControlMailbox(const ControlMailbox&) = delete;  // MPI refers to its buffers
  ControlMailbox& operator=(const ControlMailbox&) = delete;

  /// Returns the size of the encoded message in bytes. Throws BackendError naming the rank if it
  /// cannot be reached.
  std::size_t send(int rank, const WireMessage& message);

  /// The next message that has arrived, and its sender. Throws BackendError naming the rank if a
  /// message cannot be decoded or a transfer has failed; that transfer is abandoned, and the
  /// mailbox stays usable.
  std::optional<std::pair<int, WireMessage>> poll();

  /// Tests the sends in flight: true once there is none. Throws like `poll`.
  bool is_idle();
  /// Whether a send was in flight at the last test.
  bool is_sending() const { return !outgoing_.empty(); }

 private:
  // In this order: the transfer ends before its buffer is freed.
  struct Packet {
    int rank = 0;
    std::vector<std::byte> buffer;
    Transfer transfer;
  };
  using Packets = std::list<Packet>;  // spliced between lists: MPI holds their addresses

  Packets take_spare(int rank);
  void collect_sent();
  bool receive_next();

  Communicator& communicator_;
  const int tag_;
  Packets outgoing_;
  Packets incoming_;  // one at most, to keep the order
  Packets spare_;
};

}  // namespace kolo::runtime

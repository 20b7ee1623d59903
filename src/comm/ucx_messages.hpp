#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/message_rings.hpp"
#include "kolo/communicator.hpp"

namespace kolo::comm {

/// Messages between hosts without MPI, over UCX, which takes the network's fastest way: InfiniBand,
/// RoCE, TCP. It is loaded when it is needed.
///
/// Over a broken connection nothing is sent or received any more, and no transfer fails: heartbeats
/// tell that the other host is lost, or else the deadline of an operation. Any thread may call.
class UcxMessages {
 public:
  /// Opens this rank's side. `rings` carry what stays within the host, and outlive this object.
  /// Throws BackendError, with what to install if there is no UCX.
  UcxMessages(int rank, MessageRings& rings);
  UcxMessages(const UcxMessages&) = delete;  // communicators refer to it
  UcxMessages& operator=(const UcxMessages&) = delete;
  /// Waits, 10 s at most, until the other ranks end, too: between `start` and `give_up`.
  ~UcxMessages();

  /// By which others connect to this rank.
  const std::string& address() const;
  /// Connects to the ranks with these addresses, which are in rank order; those of ranks on this
  /// host are empty. Throws BackendError.
  void connect(std::span<const std::string> addresses);

  /// All ranks have connected.
  void start() noexcept;
  /// A rank is lost.
  void give_up() noexcept;

  /// See World; `members` are the indices of the ranks on this host. This object outlives the
  /// communicator.
  std::unique_ptr<Communicator> make_communicator(std::span<const int> ranks, int channel,
                                                  std::vector<int> members);

 private:
  class Worker;
  class UcxCommunicator;

  MessageRings& rings_;
  std::unique_ptr<Worker> worker_;
};

}  // namespace kolo::comm

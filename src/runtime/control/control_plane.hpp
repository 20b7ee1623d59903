#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/world.hpp"
#include "kolo/communicator.hpp"
#include "kolo/shared_window.hpp"
#include "runtime/control/heartbeats.hpp"
#include "runtime/control/loss_watch.hpp"
#include "runtime/control/tree_header_exchange.hpp"
#include "runtime/control/wire.hpp"
#include "runtime/data/set_context.hpp"
#include "runtime/protocol/coordinator.hpp"
#include "runtime/protocol/header_exchange.hpp"

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

/// The control plane of a process set on this rank: its coordinator, and the exchange of headers,
/// reports, verdicts and losses between the ranks. Ranks count within the set. No call blocks.
class ControlPlane {
 public:
  using Clock = std::chrono::steady_clock;

  struct Parts {
    std::unique_ptr<Communicator> communicator{};        ///< among the members
    std::shared_ptr<SharedWindow> window{};              ///< null: headers are sent as messages
    std::unique_ptr<Communicator> heartbeats{};          ///< between nodes, for HeartbeatThread
    std::chrono::nanoseconds to_world_clock{};           ///< see Coordinator::Options
    std::function<std::string()> activity{};             ///< the same
    std::function<void(const LostRank&)> report_lost{};  ///< tells the user, once
  };

  /// `set` and `world` outlive this object.
  ControlPlane(Parts parts, const SetContext& set, comm::World& world);

  Coordinator& coordinator() { return coordinator_; }

  /// Signals liveness and dispatches the messages that have arrived; true if there were any.
  bool receive();
  /// The coordinator's actions. Call `send` with them once the batches in them have started.
  Coordinator::Actions decide(Clock::time_point now);
  void send(Coordinator::Actions& actions);
  /// Ends the current exchange if all headers have arrived; false if they have not.
  bool end_exchange();

  /// A loss, once it is time to act on it. `needs_peers`: something on this rank waits for others.
  std::optional<LostRank> find_lost(Clock::time_point now, bool needs_peers);
  /// The first loss that any rank has published, as far as this rank knows: at once where headers
  /// are in shared memory. Throws BackendError.
  std::optional<LostRank> published_lost() { return header_exchange_->lost(); }
  /// A rank that was silent recently.
  std::optional<LostRank> find_silent() const { return watch_->find_silent(); }
  /// Tells the other ranks, logs it, and closes the coordinator.
  void declare_lost(const LostRank& lost);
  /// Tells the other ranks only.
  void publish_lost(const LostRank& lost) { header_exchange_->publish_lost(lost); }

  /// This rank has closed the set in an orderly way.
  void leave();
  bool has_left() const { return header_exchange_->has_left(communicator_->rank()); }
  /// This rank is about to free the control plane.
  void end() { header_exchange_->end(); }
  /// Whether `rank` has closed the set, or ended in it after another rank has, as far as this rank
  /// knows.
  bool has_ended(int rank) const {
    return header_exchange_->has_ended(rank) || coordinator_.closed_by() == rank;
  }
  /// All ranks have left and, as of the last `receive`, no message of this rank is in flight:
  /// leaving is the last message that a rank sends, but for the news of a loss.
  bool have_all_left() const;

  /// For traces: the rank that an operation which is not agreed on waits for; -1: not known.
  int awaited(UseId use) { return header_exchange_->awaited(coordinator_.bit_of(use)); }

  std::uint64_t header_bytes() const { return header_exchange_->bytes_shown(); }

 private:
  const SetContext& set_;
  Coordinator coordinator_;
  const std::unique_ptr<Communicator> communicator_;
  ControlMailbox mailbox_;
  std::unique_ptr<HeaderExchange> header_exchange_;
  TreeHeaderExchange* by_messages_ = nullptr;  // header_exchange_, where headers are messages
  std::optional<LossWatch> watch_;
  std::optional<Heartbeats> heartbeats_;  // between nodes
};

}  // namespace kolo::runtime

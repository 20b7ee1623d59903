#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/control/header_exchange_message.hpp"
#include "runtime/protocol/header_exchange.hpp"

namespace kolo::runtime {

/// A header exchange with messages, for ranks that share no memory. It does not use the network
/// itself: messages leave through `send` and arrive through `on_message`, in order per sender.
///
/// Headers are merged on the way up the tree and the merged header comes down: 2·(size - 1)
/// messages per exchange. Wake-up requests are flooded along the tree. Losses and leaves go to
/// every rank directly, since a rank on the way may be dead or have left; a loss is also flooded
/// along the tree, in case the rank that reports it dies meanwhile.
class TreeHeaderExchange final : public HeaderExchange {
 public:
  /// Queues a message for delivery, without blocking; returns its size in bytes. May throw
  /// BackendError if `to` cannot be reached.
  using Send = std::function<std::size_t(int to, const HeaderExchangeMessage& message)>;

  TreeHeaderExchange(int rank, int size, Tree tree, Send send);

  /// Throws BackendError for a header that is not due; no rank of the same build sends one.
  void on_message(int from, const HeaderExchangeMessage& message);

  void post(const Header& header) override;
  std::optional<Header> merged(std::uint64_t exchange) override;
  /// Known where all other ranks are this one's children.
  int awaited(std::optional<int> bit) override;
  void request_wake_up(std::uint64_t exchange) override;
  std::uint64_t highest_wake_up_request() override { return highest_wake_up_request_; }
  void publish_lost(const LostRank& lost) override;
  std::optional<LostRank> lost() override { return lost_; }
  void leave() override;
  bool has_left(int rank) override { return peer(rank).has_left; }
  std::uint64_t bytes_shown() const override { return bytes_shown_; }
  /// Nothing to do: a live coordinator reads its messages, and so answers every Ping.
  void beat() override {}
  /// Every call sends Pings, and names the ranks that have sent nothing since the previous call.
  std::vector<int> silent_ranks() override;

  void send_heartbeat(int rank) { tell(rank, Heartbeat{}); }
  /// The number of messages of any kind from a rank.
  std::uint64_t messages_from(int rank) { return peer(rank).messages; }

 private:
  struct Peer {
    bool has_left = false;
    std::uint64_t messages = 0;
    std::optional<std::uint64_t> messages_at_ping{};
  };

  void receive(int from, const HeaderUp& up);
  void receive(int from, const HeaderDown& down);
  void receive(int from, const WakeUpRequest& request);
  void receive(int from, const LostRank& lost);
  void receive(int from, const Left& left);
  void receive(int from, const Ping& ping);
  void receive(int from, const Heartbeat& heartbeat);

  void ascend();
  void descend(const Header& merged);
  std::vector<int> neighbours_except(int rank) const;
  void tell(int rank, const HeaderExchangeMessage& message);
  [[noreturn]] void reject(int from, const Header& header, const std::string& expected) const;
  int size() const { return static_cast<int>(peers_.size()); }
  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }

  const int rank_;
  const Tree tree_;
  const Send send_;
  std::optional<Header> posted_;  // not sent to the parent yet
  // One header per child. A child may be ahead by one exchange: it may have read a merged header
  // that this rank has passed on but not read itself.
  std::vector<std::optional<Header>> from_children_;
  std::vector<Bits> ready_of_children_;  // in the last exchange that all of them have posted
  Bits own_ready_;                       // the same
  std::optional<Header> merged_;
  std::uint64_t exchange_ = 0;  // of the latest header posted
  std::uint64_t highest_wake_up_request_ = 0;
  std::optional<LostRank> lost_;
  std::vector<Peer> peers_;
  std::uint64_t bytes_shown_ = 0;
};

}  // namespace kolo::runtime

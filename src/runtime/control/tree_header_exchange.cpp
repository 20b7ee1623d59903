#include "runtime/control/tree_header_exchange.hpp"

#include <algorithm>
#include <utility>

#include "kolo/error.hpp"

namespace kolo::runtime {

TreeHeaderExchange::TreeHeaderExchange(int rank, int size, Tree tree, Send send)
    : rank_(rank),
      tree_(std::move(tree)),
      send_(std::move(send)),
      from_children_(tree_.children.size()),
      ready_of_children_(tree_.children.size()),
      peers_(static_cast<std::size_t>(size)) {}

void TreeHeaderExchange::on_message(int from, const HeaderExchangeMessage& message) {
  ++peer(from).messages;
  std::visit([&](const auto& content) { receive(from, content); }, message);
}

// --- headers ---

void TreeHeaderExchange::post(const Header& header) {
  exchange_ = header.exchange;
  posted_ = header;
  ascend();
}

std::optional<Header> TreeHeaderExchange::merged(std::uint64_t exchange) {
  if (!merged_ || merged_->exchange != exchange) return std::nullopt;
  return merged_;
}

void TreeHeaderExchange::receive(int from, const HeaderUp& up) {
  const auto child = std::find(tree_.children.begin(), tree_.children.end(), from);
  if (child == tree_.children.end()) reject(from, up.header, "none, since it is no child");
  auto& slot = from_children_[static_cast<std::size_t>(child - tree_.children.begin())];
  const std::uint64_t due = slot ? slot->exchange : exchange_ + (posted_ ? 0 : 1);
  if (slot || up.header.exchange != due) reject(from, up.header, std::to_string(due) + " once");
  slot = up.header;
  ascend();
}

/// Passes the merged header up once this rank has posted its own and all children have sent theirs.
void TreeHeaderExchange::ascend() {
  const auto is_here = [](const auto& slot) { return slot.has_value(); };
  if (!posted_ || !std::all_of(from_children_.begin(), from_children_.end(), is_here)) return;
  Header header = *std::exchange(posted_, std::nullopt);
  own_ready_ = header.ready;
  for (std::size_t i = 0; i < from_children_.size(); ++i) {
    header.merge(*from_children_[i]);
    ready_of_children_[i] = std::move(from_children_[i]->ready);
    from_children_[i].reset();
  }
  if (!tree_.parent) {
    descend(header);
  } else {
    bytes_shown_ += send_(*tree_.parent, HeaderUp{std::move(header)});
  }
}

int TreeHeaderExchange::awaited(std::optional<int> bit) {
  if (std::ssize(tree_.children) != size() - 1) return -1;
  const bool is_shown = !posted_ && bit && own_ready_.test(*bit);
  for (std::size_t i = 0; i < tree_.children.size(); ++i) {
    const bool is_missing = posted_ && !from_children_[i];
    if (is_missing || (is_shown && !ready_of_children_[i].test(*bit))) return tree_.children[i];
  }
  return -1;
}

void TreeHeaderExchange::receive(int from, const HeaderDown& down) {
  if (from != tree_.parent) reject(from, down.header, "none, since it is not the parent");
  const bool is_due = !posted_ && (!merged_ || merged_->exchange < exchange_);
  if (!is_due || down.header.exchange != exchange_) {
    reject(from, down.header, std::to_string(exchange_) + " once, after this rank's own");
  }
  descend(down.header);
}

void TreeHeaderExchange::descend(const Header& merged) {
  merged_ = merged;
  for (const int child : tree_.children) bytes_shown_ += send_(child, HeaderDown{merged});
}

void TreeHeaderExchange::reject(int from, const Header& header, const std::string& expected) const {
  throw BackendError("control messages: rank " + std::to_string(rank_) +
                     " of the process set received the header of exchange " +
                     std::to_string(header.exchange) + " from rank " + std::to_string(from) +
                     ", expected " + expected + ". All ranks must run the same build of Kolo.");
}

// --- wake-up requests ---

void TreeHeaderExchange::request_wake_up(std::uint64_t exchange) {
  if (exchange <= highest_wake_up_request_) return;
  highest_wake_up_request_ = exchange;
  for (const int neighbour : neighbours_except(rank_)) send_(neighbour, WakeUpRequest{exchange});
}

void TreeHeaderExchange::receive(int from, const WakeUpRequest& request) {
  if (peer(rank_).has_left) return;  // a neighbour may have stopped receiving, too
  if (request.exchange <= highest_wake_up_request_) return;
  highest_wake_up_request_ = request.exchange;
  for (const int neighbour : neighbours_except(from)) send_(neighbour, request);
}

// --- ends ---

void TreeHeaderExchange::publish_lost(const LostRank& lost) {
  if (lost_) return;
  lost_ = lost;
  for (int rank = 0; rank < size(); ++rank) tell(rank, lost);
}

void TreeHeaderExchange::receive(int from, const LostRank& lost) {
  if (lost_) return;
  lost_ = lost;
  for (const int neighbour : neighbours_except(from)) tell(neighbour, lost);
}

void TreeHeaderExchange::leave() {
  peer(rank_).has_left = true;
  for (int rank = 0; rank < size(); ++rank) tell(rank, Left{});
}

void TreeHeaderExchange::receive(int from, const Left&) { peer(from).has_left = true; }

std::vector<int> TreeHeaderExchange::silent_ranks() {
  std::vector<int> silent;
  for (int rank = 0; rank < size(); ++rank) {
    Peer& other = peer(rank);
    if (rank == rank_ || other.has_left) continue;
    if (std::exchange(other.messages_at_ping, other.messages) == other.messages) {
      silent.push_back(rank);
    }
    tell(rank, Ping{});
  }
  return silent;
}

/// Leaving is the last message that a rank sends.
void TreeHeaderExchange::receive(int from, const Ping&) {
  if (!peer(rank_).has_left) tell(from, Heartbeat{});
}

void TreeHeaderExchange::receive(int, const Heartbeat&) {}

// --- messages ---

std::vector<int> TreeHeaderExchange::neighbours_except(int rank) const {
  std::vector<int> neighbours = tree_.children;
  if (tree_.parent) neighbours.push_back(*tree_.parent);
  std::erase(neighbours, rank);
  return neighbours;
}

/// Sends a message about ends or signs of life. A rank that cannot be reached must not keep the
/// message from the ranks after it.
void TreeHeaderExchange::tell(int rank, const HeaderExchangeMessage& message) {
  if (rank == rank_) return;
  try {
    send_(rank, message);
  } catch (const BackendError&) {
  }
}

}  // namespace kolo::runtime

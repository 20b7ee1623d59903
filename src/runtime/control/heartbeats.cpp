#include "runtime/control/heartbeats.hpp"

#include <algorithm>
#include <utility>

#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/start_watch.hpp"
#include "runtime/protocol/header_exchange.hpp"

namespace kolo::runtime {
namespace {

constexpr int kHeartbeatTag = 0;

}  // namespace

HeartbeatThread::HeartbeatThread(std::unique_ptr<Communicator> communicator,
                                 const std::vector<int>& neighbours,
                                 std::chrono::nanoseconds interval)
    : interval_(interval), communicator_(std::move(communicator)) {
  for (const int rank : neighbours) outgoing_[rank];
  thread_ = std::jthread([this](const std::stop_token& stop) { loop(stop); });
}

void HeartbeatThread::postpone() {
  const Lock lock(mutex_);
  is_postponed_ = true;
}

void HeartbeatThread::loop(const std::stop_token& stop) {
  const Lock lock(mutex_);
  for (;;) {
    wake_up_.wait_for(mutex_, stop, interval_, [] { return false; });
    if (stop.stop_requested()) return;
    if (std::exchange(is_postponed_, false)) continue;
    try {
      send();
    } catch (...) {  // a neighbour that cannot be reached: it and this rank find out by silence
      KOLO_LOG(Warn) << "heartbeats end: " << text_of_current_exception();
      return;
    }
  }
}

void HeartbeatThread::send() {
  for (auto& [rank, transfer] : outgoing_) {
    if (transfer.ready()) transfer = communicator_->send({}, rank, kHeartbeatTag);
  }
}

std::uint64_t HeartbeatThread::received_from(int rank) {
  const Lock lock(mutex_);
  for (;;) {
    if (!incoming_) {
      const auto envelope = communicator_->probe(kHeartbeatTag);
      if (!envelope) break;
      incoming_.emplace(envelope->source,
                        communicator_->receive({}, envelope->source, kHeartbeatTag));
    }
    if (!incoming_->second.ready()) break;
    ++received_[incoming_->first];
    incoming_.reset();
  }
  return received_[rank];
}

namespace {

constexpr int kHeartbeatsInLimit = 4;
constexpr auto kInterval = std::chrono::milliseconds(10);

}  // namespace

Heartbeats::Heartbeats(int rank, const SetContext& set, const comm::Topology& world,
                       TreeHeaderExchange& header_exchange, std::unique_ptr<Communicator> beside)
    : set_(set),
      world_(world),
      header_exchange_(header_exchange),
      limit_(std::max(set.longest_silence(), kShortestLimit)) {
  std::vector<int> lowest;  // of each node
  for (int other = 0; other < static_cast<int>(set.node_of_rank.size()); ++other) {
    const int node = set.node_of_rank[static_cast<std::size_t>(other)];
    if (node == static_cast<int>(lowest.size())) lowest.push_back(other);
  }
  const auto own = std::ranges::find(lowest, rank);
  if (own == lowest.end() || set.config.lost_after.count() == 0) return;
  const Tree tree(static_cast<int>(own - lowest.begin()), static_cast<int>(lowest.size()),
                  set.config.tuning.tree_width);
  const auto add = [&](int node) {
    neighbours_.push_back({lowest[static_cast<std::size_t>(node)]});
  };
  if (tree.parent) add(*tree.parent);
  std::ranges::for_each(tree.children, add);
  if (neighbours_.empty() || beside == nullptr) return;
  std::vector<int> ranks;
  for (const Neighbour& neighbour : neighbours_) ranks.push_back(neighbour.rank);
  thread_ = std::make_unique<HeartbeatThread>(std::move(beside), std::move(ranks),
                                              limit_ / kHeartbeatsInLimit);
}

std::optional<LostRank> Heartbeats::check(Clock::time_point now) {
  if (neighbours_.empty() || (last_check_ && now < *last_check_ + kInterval)) return std::nullopt;
  const auto waited = now - std::exchange(last_check_, now).value_or(now);
  const bool is_due = now >= next_heartbeat_;
  if (is_due) next_heartbeat_ = now + limit_ / kHeartbeatsInLimit;
  if (is_due && thread_ != nullptr) thread_->postpone();
  const Neighbour* lost = nullptr;
  for (Neighbour& neighbour : neighbours_) {
    if (header_exchange_.has_left(neighbour.rank)) continue;
    if (is_due) header_exchange_.send_heartbeat(neighbour.rank);
    listen(neighbour, waited);
    if (lost == nullptr && neighbour.silence >= limit_) lost = &neighbour;
  }
  if (lost == nullptr) return std::nullopt;
  return describe(lost->rank);
}

/// A rank that was paused, for example with its whole machine, reads its neighbours' heartbeats
/// only in its next steps, so that not all of this time counts.
void Heartbeats::listen(Neighbour& neighbour, std::chrono::nanoseconds waited) {
  const std::uint64_t messages = messages_from(neighbour.rank);
  const bool is_silent = std::exchange(neighbour.messages, messages) == messages;
  neighbour.silence = is_silent ? neighbour.silence + std::min(waited, limit_ / kHeartbeatsInLimit)
                                : std::chrono::nanoseconds{0};
}

std::uint64_t Heartbeats::messages_from(int rank) {
  const std::uint64_t beside = thread_ == nullptr ? 0 : thread_->received_from(rank);
  return header_exchange_.messages_from(rank) + beside;
}

LostRank Heartbeats::describe(int rank) const {
  // Hosts that fail together fall silent within the time between two heartbeats.
  const auto almost = limit_ - limit_ / kHeartbeatsInLimit;
  std::string hosts;
  for (const Neighbour& neighbour : neighbours_) {
    if (neighbour.silence < almost || header_exchange_.has_left(neighbour.rank)) continue;
    hosts += (hosts.empty() ? "" : " and from ") + host_of(neighbour.rank);
  }
  return {rank, "cannot be reached: nothing has come from " + hosts + " for " +
                    comm::text_of_seconds(limit_) +
                    " (KOLO_LOST_AFTER). The host or its network has failed, or the process was "
                    "stopped, as by a debugger. Start again from the last checkpoint with the "
                    "hosts that are left, or with a longer KOLO_LOST_AFTER; 0s: never."};
}

/// As in "host b (ranks 2 and 3)".
std::string Heartbeats::host_of(int rank) const {
  const int node = set_.node_of_rank[static_cast<std::size_t>(rank)];
  std::vector<int> ranks;
  for (std::size_t other = 0; other < set_.node_of_rank.size(); ++other) {
    if (set_.node_of_rank[other] == node) ranks.push_back(set_.world_ranks[other]);
  }
  if (world_.host_of_rank.empty()) return "the host of " + list_ranks(ranks);
  return "host " + world_.host_of_rank[static_cast<std::size_t>(ranks.front())] + " (" +
         list_ranks(ranks) + ")";
}

}  // namespace kolo::runtime

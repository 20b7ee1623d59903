#include "runtime/control/heartbeats.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/deadline.hpp"
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

Heartbeats::Heartbeats(int rank, const DataPath& set, const comm::Topology& world,
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

std::optional<HeaderExchange::Loss> Heartbeats::check(Clock::time_point now) {
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

HeaderExchange::Loss Heartbeats::describe(int rank) const {
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

namespace {

constexpr auto kPropagationTime =
    std::chrono::milliseconds(200);  // every rank checks once in 50 ms

}  // namespace

std::optional<HeaderExchange::Loss> LossWatch::check(Clock::time_point now, bool needs_peers) {
  // Check processes before published losses: a process that ends because of a loss has published
  // that loss first, and must not count as its cause.
  const bool is_due = now >= next_check_;
  std::vector<int> dead;
  if (is_due) dead = world_.dead_peers();
  if (auto loss = header_exchange_.lost()) {
    if (has_reached_all(*loss, now)) return loss;
    return std::nullopt;
  }
  if (!is_due) return std::nullopt;
  next_check_ = now + kInterval;
  for (const int peer : dead) {
    const std::optional<int> rank = member(peer);
    if (!rank || header_exchange_.has_left(*rank)) continue;
    // A process may end once all ranks have left, although this rank has not read its last message.
    const bool have_we_left = header_exchange_.has_left(set_.communicator->rank());
    if (have_we_left && std::exchange(suspect_, rank) != rank) break;
    return announce({*rank, "died: its process has ended"}, now);
  }
  if (now >= next_sample_ && needs_peers) {
    next_sample_ = later(now, set_.longest_silence() / 2);
    silent_ = header_exchange_.silent_ranks();
  }
  return std::nullopt;
}

std::optional<HeaderExchange::Loss> LossWatch::announce(const Loss& loss, Clock::time_point now) {
  header_exchange_.publish_lost(loss);
  if (has_reached_all(loss, now)) return loss;
  return std::nullopt;
}

/// A rank that announces its own end waits until the others have learned of it, and so do the
/// others: mpirun ends all processes as soon as one has ended. Between hosts, a message may first
/// have to wait for its connection, and does not survive its sender.
bool LossWatch::has_reached_all(const Loss& loss, Clock::time_point now) {
  const std::vector<int> dead = world_.dead_peers();
  const bool sees_death = std::ranges::find(dead, set_.world_rank(loss.rank)) != dead.end();
  const bool is_one_host =
      std::ranges::count(set_.node_of_rank, 0) == std::ssize(set_.node_of_rank);
  if (sees_death && is_one_host) return true;
  if (!heard_at_) heard_at_ = now;
  report(loss);
  return now >= *heard_at_ + kPropagationTime;
}

std::optional<HeaderExchange::Loss> LossWatch::find_silent() const {
  // Uses the latest complete interval: a new sample might follow the last one within microseconds.
  if (silent_.empty()) return std::nullopt;
  return Loss{silent_.front(),
              "does not answer: its coordinator gave no sign of life while others waited"};
}

void LossWatch::report(const Loss& loss) {
  if (std::exchange(is_reported_, true)) return;
  report_(loss);
}

std::optional<int> LossWatch::member(int world_rank) const {
  const std::vector<int>& ranks = set_.world_ranks;
  const auto found = std::find(ranks.begin(), ranks.end(), world_rank);
  if (found == ranks.end()) return std::nullopt;
  return static_cast<int>(found - ranks.begin());
}

}  // namespace kolo::runtime

#include "runtime/control/loss_watch.hpp"

#include <algorithm>
#include <iterator>

#include "base/deadline.hpp"

namespace kolo::runtime {
namespace {

constexpr auto kBetweenChecks = std::chrono::milliseconds(10);
constexpr auto kPropagationTime =
    std::chrono::milliseconds(200);  // every rank checks once in 50 ms

}  // namespace

std::optional<LostRank> LossWatch::check(Clock::time_point now, bool needs_peers) {
  // Check processes before published losses: a process that ends because of a loss has published
  // that loss first, and must not count as its cause.
  const bool is_due = now >= next_check_;
  std::vector<int> dead;
  if (is_due) dead = world_.dead_peers();
  if (auto lost = header_exchange_.lost()) {
    if (has_reached_all(*lost, now)) return lost;
    return std::nullopt;
  }
  if (!is_due) return std::nullopt;
  next_check_ = now + kBetweenChecks;
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

std::optional<LostRank> LossWatch::announce(const LostRank& lost, Clock::time_point now) {
  header_exchange_.publish_lost(lost);
  if (has_reached_all(lost, now)) return lost;
  return std::nullopt;
}

/// A rank that announces its own end waits until the others have learned of it, and so do the
/// others: mpirun ends all processes as soon as one has ended. Between hosts, a message may first
/// have to wait for its connection, and does not survive its sender.
bool LossWatch::has_reached_all(const LostRank& lost, Clock::time_point now) {
  const std::vector<int> dead = world_.dead_peers();
  const bool sees_death = std::ranges::find(dead, set_.world_rank(lost.rank)) != dead.end();
  const bool is_one_host =
      std::ranges::count(set_.node_of_rank, 0) == std::ssize(set_.node_of_rank);
  if (sees_death && is_one_host) return true;
  if (!heard_at_) heard_at_ = now;
  report(lost);
  return now >= *heard_at_ + kPropagationTime;
}

std::optional<LostRank> LossWatch::find_silent() const {
  // Uses the latest complete interval: a new sample might follow the last one within microseconds.
  if (silent_.empty()) return std::nullopt;
  return LostRank{silent_.front(),
                  "does not answer: its coordinator gave no sign of life while others waited"};
}

void LossWatch::report(const LostRank& lost) {
  if (std::exchange(is_reported_, true)) return;
  report_(lost);
}

std::optional<int> LossWatch::member(int world_rank) const {
  const std::vector<int>& ranks = set_.world_ranks;
  const auto found = std::find(ranks.begin(), ranks.end(), world_rank);
  if (found == ranks.end()) return std::nullopt;
  return static_cast<int>(found - ranks.begin());
}

}  // namespace kolo::runtime

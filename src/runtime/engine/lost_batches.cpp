#include "runtime/engine/lost_batches.hpp"

#include <algorithm>
#include <iterator>

namespace kolo::runtime {

void LostBatches::add(Batches batches) {
  std::move(batches.begin(), batches.end(), std::back_inserter(batches_));
}

LostBatches::Batches LostBatches::take_drained(Clock::time_point now) {
  if (batches_.empty()) return {};
  if (!since_) since_ = now;
  if (!is_drained(now - *since_)) return {};
  return std::exchange(batches_, {});
}

bool LostBatches::is_drained(Clock::duration waited) {
  const std::vector<int> dead = world_.dead_peers();
  bool is_drained = true;  // all are asked: that makes their messages move
  for (Communicator* const communicator : communicators_) {
    is_drained &= this->is_drained(*communicator, waited, dead);
  }
  return is_drained || waited >= kMaxDrainTime;
}

bool LostBatches::is_drained(Communicator& communicator, Clock::duration waited,
                             const std::vector<int>& dead) const {
  const Communicator::UnderWay under_way = communicator.give_up_receives();
  const auto is_alive_rank = [&](int rank) { return is_alive(rank, dead); };
  const bool is_all_received = waited >= kDeadRankDelay
                                   ? std::ranges::none_of(under_way.from, is_alive_rank)
                                   : under_way.from.empty();
  return is_all_received && std::ranges::none_of(under_way.to, is_alive_rank);
}

/// As far as this rank knows.
bool LostBatches::is_alive(int rank, const std::vector<int>& dead) const {
  const int in_world = set_.world_rank(rank);
  return std::ranges::find(dead, in_world) == dead.end();
}

}  // namespace kolo::runtime

#include "runtime/lane/lost_batches.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

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
  const Communicator::UnderWay under_way = path_.communicator->give_up_receives();
  if (waited >= kMaxDrainTime) return true;
  const std::vector<int> dead = world_.dead_peers();
  const auto is_alive_rank = [&](int rank) { return is_alive(rank, dead); };
  const bool is_all_received = waited >= kDeadRankDelay
                                   ? std::ranges::none_of(under_way.from, is_alive_rank)
                                   : under_way.from.empty();
  return is_all_received && std::ranges::none_of(under_way.to, is_alive_rank);
}

/// As far as this rank knows.
bool LostBatches::is_alive(int rank, const std::vector<int>& dead) const {
  const int in_world = path_.world_rank(rank);
  return std::ranges::find(dead, in_world) == dead.end();
}

}  // namespace kolo::runtime

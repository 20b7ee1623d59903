#include "support/gpu/launch_order.hpp"

namespace kolo::test {

void LaunchOrder::join(std::size_t communicator, int rank) {
  if (communicator >= communicators_.size()) communicators_.resize(communicator + 1);
  communicators_[communicator].launched.emplace(rank, 0);
}

std::string LaunchOrder::launch(std::size_t communicator, int rank) {
  Before before{rank, {}};
  for (Communicator& known : communicators_) {
    const auto launched = known.launched.find(rank);
    before.launched.push_back(launched == known.launched.end() ? 0 : launched->second);
  }
  Communicator& own = communicators_[communicator];
  const std::size_t sequence = own.launched[rank]++;
  if (own.is_forgotten) return {};

  std::string hazard;
  std::vector<Before>& others = own.operations[sequence];
  for (const Before& other : others) {
    // Visits each pair of communicators once, from the newer one.
    for (std::size_t older = 0; older < communicator; ++older) {
      const std::size_t there = older < other.launched.size() ? other.launched[older] : 0;
      const std::size_t here = before.launched[older];
      if (here == there || !is_shared(communicators_[older], rank, other.rank)) continue;
      hazard = "launch order: operation " + std::to_string(sequence) + " of communicator " +
               std::to_string(communicator) + " comes after " + std::to_string(here) +
               " operations of communicator " + std::to_string(older) + " on rank " +
               std::to_string(rank) + ", and after " + std::to_string(there) + " on rank " +
               std::to_string(other.rank);
    }
  }
  others.push_back(std::move(before));
  if (others.size() == own.launched.size()) own.operations.erase(sequence);
  return hazard;
}

void LaunchOrder::forget(std::size_t communicator) {
  communicators_[communicator].is_forgotten = true;
  communicators_[communicator].operations.clear();
}

bool LaunchOrder::is_shared(const Communicator& communicator, int one, int other) const {
  return !communicator.is_forgotten && communicator.launched.contains(one) &&
         communicator.launched.contains(other);
}

}  // namespace kolo::test

#include "support/gpu/launch_order.hpp"

#include <algorithm>

namespace kolo::test {

void LaunchOrder::join(std::size_t communicator, int rank) {
  if (communicator >= communicators_.size()) communicators_.resize(communicator + 1);
  communicators_[communicator].launched.emplace(rank, 0);
}

void LaunchOrder::launch(std::size_t communicator, int rank) {
  waiting_[rank].emplace_back(communicator, communicators_[communicator].launched[rank]++);
  run();
}

void LaunchOrder::forget(std::size_t communicator) {
  communicators_[communicator].is_forgotten = true;
  run();
}

bool LaunchOrder::can_run(const Operation& operation) const {
  const Communicator& communicator = communicators_[operation.first];
  return std::ranges::all_of(communicator.launched, [&](const auto& member) {
    const auto waiting = waiting_.find(member.first);
    return waiting != waiting_.end() && !waiting->second.empty() &&
           waiting->second.front() == operation;
  });
}

void LaunchOrder::run() {
  for (bool has_run = true; has_run;) {
    has_run = false;
    for (auto& [rank, operations] : waiting_) {
      if (operations.empty()) continue;
      const Operation first = operations.front();
      const Communicator& communicator = communicators_[first.first];
      if (communicator.is_forgotten) {
        operations.pop_front();
        has_run = true;
      } else if (can_run(first)) {
        for (const auto& [member, launched] : communicator.launched) waiting_[member].pop_front();
        has_run = true;
      }
    }
  }
}

std::string LaunchOrder::find_stuck() const {
  const auto describe = [](const Operation& operation) {
    return "operation " + std::to_string(operation.second) + " of communicator " +
           std::to_string(operation.first);
  };
  const auto is_everywhere = [&](const Operation& operation) {
    return std::ranges::all_of(communicators_[operation.first].launched, [&](const auto& member) {
      return member.second > operation.second;
    });
  };
  for (const auto& [rank, operations] : waiting_) {
    if (operations.empty() || !is_everywhere(operations.front())) continue;
    for (const Operation& operation : operations) {
      if (operation == operations.front() || !is_everywhere(operation)) continue;
      return "launch order: all ranks have launched " + describe(operation) +
             ", but it cannot run behind " + describe(operations.front()) + " on rank " +
             std::to_string(rank);
    }
  }
  return {};
}

}  // namespace kolo::test

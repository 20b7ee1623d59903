#pragma once

#include <functional>
#include <span>
#include <string>

#include "base/deadline.hpp"
#include "comm/world.hpp"
#include "kolo/task.hpp"

namespace kolo::comm {

/// Runs a task to its end on the calling thread, which sleeps while there is nothing to do.
/// Rethrows the task's exception. Throws TimeoutError and destroys the task after the deadline.
void wait(Task task, Deadline deadline);

/// The ranks that a blocking step needs.
struct NeededRanks {
  World& world;
  std::span<const int> ranks;
  std::string step;                     ///< completes "rank 1 died while "
  std::function<void()> check = [] {};  ///< throws PeerLostError if one is lost in another way
};

/// Runs a task that needs these ranks to its end; throws PeerLostError once one of them has died.
/// Marks the world as broken if it abandons the task.
void wait(Task task, Deadline deadline, const NeededRanks& needed);

}  // namespace kolo::comm

#pragma once

#include "base/deadline.hpp"
#include "comm/world.hpp"
#include "kolo/task.hpp"

namespace kolo::comm {

/// Runs a task to its end on the calling thread, which sleeps while there is nothing to do.
/// Rethrows the task's exception. Throws TimeoutError and destroys the task after the deadline.
void wait(Task task, Deadline deadline);

/// The same for a task that needs all ranks of `world`: also throws PeerLostError once one of them
/// has died. Marks the world as broken if it abandons the task.
void wait(Task task, Deadline deadline, World& world);

}  // namespace kolo::comm

#pragma once

#include "base/deadline.hpp"
#include "comm/world.hpp"
#include "kolo/task.hpp"

namespace kolo::comm {

/// Runs a task to its end on the calling thread, asleep while there is nothing to do. Rethrows what
/// the task throws. Throws TimeoutError, and destroys the task, once the deadline is over.
void wait(Task task, Deadline deadline);

/// The same for a task that needs all ranks of `world`: throws PeerLostError as well, once one of
/// them has died. Marks the world as broken where it gives the task up.
void wait(Task task, Deadline deadline, World& world);

}  // namespace kolo::comm

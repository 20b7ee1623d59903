#pragma once

#include "base/deadline.hpp"
#include "kolo/task.hpp"

namespace kolo::comm {

/// Runs a task to its end on the calling thread, asleep while there is nothing to do. Rethrows what
/// the task throws. Throws TimeoutError, and destroys the task, once the deadline is over.
void wait(Task task, Deadline deadline);

}  // namespace kolo::comm

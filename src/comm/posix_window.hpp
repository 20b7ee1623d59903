#pragma once

#include <cstddef>
#include <memory>

#include "kolo/communicator.hpp"
#include "kolo/shared_window.hpp"
#include "kolo/task.hpp"

namespace kolo::comm {

/// Makes a window of POSIX shared memory among the ranks of `communicator`; see World::make_window.
/// Every rank makes its own segment (see make_segment), which the others open through
/// /proc/<pid>/fd. This requires the same PID namespace and user; otherwise the call fails.
Task make_posix_window(Communicator& communicator, int tag, std::size_t segment_bytes,
                       std::shared_ptr<SharedWindow>& window);

}  // namespace kolo::comm

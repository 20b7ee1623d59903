#pragma once

#include <cstddef>
#include <memory>

#include "kolo/communicator.hpp"
#include "kolo/shared_window.hpp"
#include "kolo/task.hpp"

namespace kolo::comm {

/// Makes a window of POSIX shared memory among the ranks of `communicator`, as World::make_window
/// says. Every rank makes its own segment (see make_segment). The others open it through
/// /proc/<pid>/fd: they must run in the same PID namespace, under the same user. Where they do not,
/// that is found out, and an error.
Task make_posix_window(Communicator& communicator, int tag, std::size_t segment_bytes,
                       std::shared_ptr<SharedWindow>& window);

}  // namespace kolo::comm

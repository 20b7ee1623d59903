#pragma once

#include <nccl.h>

#include "kolo/communicator.hpp"
#include "kolo/task.hpp"

namespace kolo::comm {

/// Sets `id` to what rank 0 of `communicator` gets from NCCL, by which the ranks of a new NCCL
/// communicator find one another. Collective; uses the tag `tag`. Throws BackendError on all ranks
/// if NCCL fails on rank 0.
Task share_nccl_id(Communicator& communicator, int tag, ncclUniqueId& id);

}  // namespace kolo::comm

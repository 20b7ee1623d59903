#pragma once

#include <nccl.h>

#include "kolo/communicator.hpp"
#include "kolo/task.hpp"

namespace kolo::comm {

/// Sets `id` on all ranks to a new NCCL id of rank 0, with which the ranks of an NCCL communicator
/// find each other. Collective; uses the tag `tag`. Throws BackendError on all ranks if NCCL fails
/// on rank 0.
Task share_nccl_id(Communicator& communicator, int tag, ncclUniqueId& id);

}  // namespace kolo::comm

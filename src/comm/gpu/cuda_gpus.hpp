#pragma once

#include "comm/gpu/gpu.hpp"

namespace kolo::comm {

/// The GPUs that CUDA shows this process, connected by NCCL; they live as long as the process. Null
/// if Kolo was built without CUDA. Any thread may call.
///
/// `count` throws BackendError, with the reason, if there is no GPU or the driver is too old.
/// `open` returns the same object for an index as long as it has an owner.
Gpus* cuda_gpus();

/// Allows ranks to connect that share a GPU, which NCCL refuses within one host: gives the process
/// a NCCL_HOSTID of its own unless it has one. Call it before any of them connects.
void let_ranks_share_gpus();

}  // namespace kolo::comm

#pragma once

#include "comm/gpu/gpu.hpp"

namespace kolo::comm {

/// The GPUs that CUDA shows this process, connected by NCCL; lives as long as the process. Null
/// where Kolo was built without CUDA. Any thread may call.
///
/// `count` throws BackendError, with the reason, where there is no GPU or no driver that is new
/// enough. `open` gives the same object for an index as long as somebody has it.
Gpus* cuda_gpus();

/// Lets ranks connect that use the same GPU, which NCCL refuses within one host: each process gets
/// a NCCL_HOSTID of its own unless it has one. To be called before any of them connects.
void let_ranks_share_gpus();

}  // namespace kolo::comm

#pragma once

#include <string_view>

#include "comm/gpu/gpu.hpp"

namespace kolo::comm {

/// The GPUs that CUDA shows this process, connected by NCCL; they live as long as the process. Null
/// if Kolo was built without CUDA. Any thread may call.
///
/// `count` throws BackendError, with the reason, if there is no GPU or the driver is too old.
/// `open` returns the same object for an index as long as it has an owner.
Gpus* cuda_gpus();

/// Lets ranks that share a GPU connect, which NCCL does not allow within one host: gives the
/// process its own NCCL_HOSTID unless it has one. Call it before any of them connects.
void let_ranks_share_gpus();

/// Calls `end` when the process exits, before CUDA's own handlers if a GPU is used: afterwards no
/// call of CUDA or NCCL works, so the destructor of a static object would run too late. There is
/// one `end` per process.
void at_exit_before_cuda(void (*end)());

/// Sets NCCL's environment variables, unless they are set already: NCCL_ALGO=Ring if `algo` is
/// "ring", and NCCL_LAUNCH_ORDER_IMPLICIT=1 (see Gpus::starts_collectives_in_order). Call it before
/// any other thread starts: none may read the environment meanwhile.
void set_up_nccl(std::string_view algo);

}  // namespace kolo::comm

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "comm/gpu/gpu.hpp"

namespace kolo::comm {

/// The GPUs that CUDA shows this process, connected by NCCL; they live as long as the process. Null
/// if Kolo was built without CUDA. Any thread may call.
///
/// `count` throws BackendError, with the reason, if there is no GPU or the driver is too old.
/// `open` returns the same object for an index as long as it has an owner.
Gpus* cuda_gpus();

/// Identifies the GPU that the rank uses unless its program chooses another: GPU `local_rank`
/// modulo the number of GPUs. It is the same number in all processes, whatever CUDA_VISIBLE_DEVICES
/// says; 0 without a GPU.
std::uint64_t usual_gpu(int local_rank);

/// `usual_gpus` of all ranks: if two use one GPU, which NCCL does not allow within one host, gives
/// this process its own NCCL_HOSTID unless it has one. Otherwise does nothing: on hosts of their
/// own, ranks would lose NVLink and shared memory. Call it before any of them connects.
void let_ranks_share_gpus(std::span<const std::uint64_t> usual_gpus);

/// Calls `end` when the process exits, before CUDA's own handlers if a GPU is used: afterwards no
/// call of CUDA or NCCL works, so the destructor of a static object would run too late. There is
/// one `end` per process.
void at_exit_before_cuda(void (*end)());

/// Sets NCCL_ALGO=Ring if `algo` is "ring", unless the variable is set already. Call it before any
/// other thread starts: none may read the environment meanwhile.
void set_up_nccl(std::string_view algo);

/// "CUDA 13.0, NCCL 2.28.9": the versions of this build, or "off".
std::string cuda_version();

}  // namespace kolo::comm

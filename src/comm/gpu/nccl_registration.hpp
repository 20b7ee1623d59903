#pragma once

#include <cstddef>

#include <nccl.h>

namespace kolo::comm {

/// ncclCommRegister, which NCCL has from 2.19 on, and its opposite. They are looked up while the
/// program runs: it may have been built with another NCCL than it finds.
///
/// @return null if NCCL has no such function, declines or fails, which is logged. It declines
///   everything with NCCL_LOCAL_REGISTER=0, and memory that is partly on the CPU
void* register_with_nccl(ncclComm_t communicator, void* memory, std::size_t bytes);
/// @throws BackendError
void deregister_with_nccl(ncclComm_t communicator, void* registration);

}  // namespace kolo::comm

#pragma once

#include <cstddef>

#include <nccl.h>

namespace kolo::comm {

/// ncclCommRegister, which NCCL has since 2.19, and ncclCommDeregister. They are looked up at run
/// time, because the program may run with a different NCCL than it was built with.
///
/// @return null if NCCL has no such function, declines or fails, which is logged. It declines
///   everything with NCCL_LOCAL_REGISTER=0, and memory that is partly on the CPU
void* register_with_nccl(ncclComm_t communicator, void* memory, std::size_t bytes);
/// @throws BackendError
void deregister_with_nccl(ncclComm_t communicator, void* registration);

}  // namespace kolo::comm

#pragma once

#include <memory>

#include <cuda_runtime_api.h>

#include "bench/ranks/gpu.hpp"

namespace bench {

/// NCCL as most programs have it: a communicator that blocks, of the calling thread's current
/// devices on all ranks of MPI's world. Collective.
std::unique_ptr<RawCollectives> connect_raw_nccl(cudaStream_t stream);

}  // namespace bench

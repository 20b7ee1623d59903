#pragma once

#include <memory>

#include <cuda_runtime_api.h>

#include "bench/ranks/gpu.hpp"

namespace bench {

/// NCCL as most programs use it: a blocking communicator over all ranks of MPI_COMM_WORLD, each
/// with its calling thread's current device. Collective.
std::unique_ptr<RawCollectives> connect_raw_nccl(cudaStream_t stream);

}  // namespace bench

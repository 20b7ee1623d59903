#pragma once

#include <string>

namespace kolo::comm {

/// The name of the running MPI library, on one line.
std::string mpi_version();

/// "CUDA 13.0, NCCL 2.28.9": the versions of this build, or "off".
std::string cuda_version();

}  // namespace kolo::comm

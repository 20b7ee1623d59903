#pragma once

#include <string>

namespace kolo::comm {

/// The MPI library that runs, on one line, as it names itself.
std::string mpi_version();

/// "CUDA 13.0, NCCL 2.28.9" that this was built with, or "off".
std::string cuda_version();

}  // namespace kolo::comm

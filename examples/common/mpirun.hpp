#pragma once

#include <string>

namespace examples {

/// The value of KOLO_MPIRUN, or "mpirun".
std::string default_mpirun();

/// Whether `mpirun` is Open MPI's, according to --version. Its options differ from those of MPICH
/// and Intel MPI.
bool is_open_mpi(const std::string& mpirun);

}  // namespace examples

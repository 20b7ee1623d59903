#pragma once

#include <string>

namespace examples {

/// What KOLO_MPIRUN names, or "mpirun".
std::string default_mpirun();

/// Whether `mpirun --version` says that it is Open MPI's: options differ from those of MPICH's and
/// Intel's.
bool is_open_mpi(const std::string& mpirun);

}  // namespace examples

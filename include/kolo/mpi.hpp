#pragma once

#include <mpi.h>

#include "kolo/mpi_lock.hpp"

#pragma GCC visibility push(default)
/// For programs that use MPI themselves, and link it: MPI::MPI_C. Kolo's other headers do not
/// include mpi.h.
namespace kolo {

/// The Fortran handle of a communicator, for InitOptions::communicator:
///
///     kolo::Runtime runtime({.communicator = kolo::mpi_handle(trainers)});
///
/// Programs that have a Fortran handle, such as mpi4py's comm.py2f(), pass it directly.
///
/// @param communicator an intracommunicator that contains this process. Kolo keeps duplicates of
///   it, and frees them when the program frees the communicator, after the last Runtime on it
inline int mpi_handle(MPI_Comm communicator) { return MPI_Comm_c2f(communicator); }

}  // namespace kolo
#pragma GCC visibility pop

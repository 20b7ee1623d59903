#pragma once

#include <mpi.h>

#pragma GCC visibility push(default)
/// For programs that use MPI themselves. Kolo's other headers do not include mpi.h.
namespace kolo {

/// The Fortran handle of a communicator, for InitOptions::communicator:
///
///     kolo::Runtime runtime({.communicator = kolo::mpi_handle(trainers)});
///
/// Programs that have a Fortran handle, as mpi4py's comm.py2f(), give it directly.
///
/// @param communicator an intracommunicator, of which this process is a rank. Kolo keeps duplicates
///   of it, which it frees when the program frees the communicator, after the last Runtime over it
inline int mpi_handle(MPI_Comm communicator) { return MPI_Comm_c2f(communicator); }

}  // namespace kolo
#pragma GCC visibility pop

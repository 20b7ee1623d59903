#pragma once

#include <mutex>

#include <mpi.h>

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

/// Keeps Kolo's threads out of MPI while it lives. A program that initialized MPI with
/// MPI_THREAD_SERIALIZED must hold one during each of its MPI calls, once it has a Runtime:
///
///     {
///       const kolo::MpiLock lock;
///       MPI_Isend(…);
///     }
///
/// With other thread levels it does nothing. The lock is recursive, and its thread may call Kolo.
/// While a thread that holds it waits for another rank, Kolo makes no progress on this rank: if
/// that rank waits in Kolo, the two deadlock.
class MpiLock {
 public:
  MpiLock();  ///< Requires running MPI. Blocks while a Kolo thread is inside MPI, for microseconds.

 private:
  std::unique_lock<std::recursive_mutex> calls_;
};

}  // namespace kolo
#pragma GCC visibility pop

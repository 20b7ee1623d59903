#pragma once

#include <mutex>

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

/// Keeps Kolo's threads out of MPI while it lives. A program that started MPI with
/// MPI_THREAD_SERIALIZED makes every MPI call inside one, once it has a Runtime:
///
///     {
///       const kolo::MpiLock lock;
///       MPI_Isend(…);
///     }
///
/// With other thread levels it does nothing. The thread that has it may take it again, and may call
/// Kolo. A call that waits for another rank blocks Kolo on this rank: where that rank waits in Kolo
/// meanwhile, neither goes on.
class MpiLock {
 public:
  MpiLock();  ///< MPI is running. Blocks while a thread of Kolo is inside MPI, for microseconds.

 private:
  std::unique_lock<std::recursive_mutex> calls_;
};

}  // namespace kolo
#pragma GCC visibility pop

#pragma once

#include <mutex>

#pragma GCC visibility push(default)
namespace kolo {

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

#pragma once

#include <chrono>
#include <mutex>
#include <string>

#include "base/creator_process.hpp"
#include "comm/start_watch.hpp"

namespace kolo::comm {

/// MPI in this process, initialized by Kolo or by the program.
///
/// Kolo finalizes MPI only if it initialized it, and as late as possible: when the process exits
/// and the last session has ended. It does not finalize after a peer was lost, since that would
/// wait for the peer; nor if a rank calls exit with an open session, since the others may wait for
/// that rank: the launcher then sees a process that ended without finalizing, and ends the others.
namespace mpi_environment {

/// Whether MPI has been initialized and not finalized.
bool is_running();

/// Whether MPI is running, and any thread may call it at any time.
bool has_any_thread();

/// The highest tag of messages on any communicator. MPI must be running.
int highest_tag();

/// Excludes MPI calls of other threads: Kolo's, and those that the program makes under its MpiLock.
/// Does nothing unless MPI was initialized with MPI_THREAD_SERIALIZED. Recursive.
std::unique_lock<std::recursive_mutex> lock_calls();

/// A use of MPI.
class Session {
 public:
  /// Loads MPI from the file `library`, see load_mpi, and initializes it, unless it is running, and
  /// ignores SIGPIPE from now on unless the program handles it. Ends the process if MPI_Init waits
  /// for others for longer than `timeout`; `watch` knows which have started. Throws
  /// InvalidArgument, naming the remedy, if there is no MPI, if the program has finalized it
  /// already, if a parent of this process uses it, or if it runs below MPI_THREAD_SERIALIZED:
  /// engines call it on threads of their own.
  Session(const std::string& library, StartWatch& watch, std::chrono::nanoseconds timeout);
  Session(const Session&) = delete;  // sessions are counted
  Session& operator=(const Session&) = delete;
  ~Session();

  /// False in a forked child, which must not use MPI.
  bool is_in_creator_process() const { return creator_.is_current(); }

 private:
  const CreatorProcess creator_;
};

/// A peer was lost: from now on no MPI function that waits may be called.
void mark_broken() noexcept;
bool is_broken() noexcept;

}  // namespace mpi_environment

}  // namespace kolo::comm

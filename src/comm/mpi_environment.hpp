#pragma once

#include <chrono>
#include <mutex>

#include "base/creator_process.hpp"
#include "comm/messaging_thread.hpp"
#include "comm/start_watch.hpp"

namespace kolo::comm {

/// MPI in this process: started by Kolo, or by the program and joined.
///
/// Kolo finalizes MPI only if it started it, and as late as possible: when the process exits and
/// the last session has ended. It does not finalize after a peer was lost, since that would wait
/// for the peer; nor where a rank calls exit with a session open, since the others may wait for
/// that rank: the launcher then sees a process that ended without finalizing, and ends them.
namespace mpi_environment {

/// Whether MPI has been started and not finalized.
bool is_running();

/// Of messages on any communicator; MPI is running.
int highest_tag();

/// Excludes the MPI calls of other threads: Kolo's, and those that the program makes under its own
/// MpiLock. Does nothing unless MPI was started with MPI_THREAD_SERIALIZED. The thread that holds
/// it may take it again.
std::unique_lock<std::recursive_mutex> lock_calls();

/// The only thread that may call MPI, where it was started with MPI_THREAD_FUNNELED or
/// MPI_THREAD_SINGLE; otherwise null. In a session.
MessagingThread* messaging_thread();

/// A use of MPI.
class Session {
 public:
  /// Starts MPI, or joins the running one. Ends the process where MPI_Init waits for others for
  /// longer than `timeout`; `watch` knows who has come. Throws InvalidArgument, which says what to
  /// write instead, where the program has finalized MPI already, where a parent of this process
  /// uses it, or where only another thread may call it.
  Session(const StartWatch& watch, std::chrono::nanoseconds timeout);
  Session(const Session&) = delete;  // sessions are counted
  Session& operator=(const Session&) = delete;
  ~Session();

  /// False in a forked child, where MPI must not be touched.
  bool is_in_creator_process() const { return creator_.is_current(); }

 private:
  const CreatorProcess creator_;
};

/// A peer was lost: from now on no MPI function that waits may be called.
void mark_broken() noexcept;
bool is_broken() noexcept;

}  // namespace mpi_environment
}  // namespace kolo::comm

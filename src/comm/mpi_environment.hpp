#pragma once

#include "base/home_process.hpp"

namespace kolo::comm {

/// MPI in this process: started by Kolo, or by the program and joined.
///
/// Kolo finalises MPI only if it started it, and as late as can be: when the process ends and the
/// last session has. Not where a peer was lost, since that would wait for it; nor where a rank
/// calls exit with a session open, since the others may wait for that rank: its launcher then sees
/// a process that ended without finalising, and ends them.
namespace mpi_environment {

/// Whether there is an MPI to join: it runs already, or a launcher started this process.
bool is_available();

/// MPI in use.
class Session {
 public:
  /// Starts MPI, or joins the one that runs. Throws InvalidArgument, which shows the line to write,
  /// where the program started it without MPI_THREAD_MULTIPLE or finalised it already, or where a
  /// parent of this process uses it; BackendError where this MPI cannot do it.
  Session();
  Session(const Session&) = delete;  // sessions are counted
  Session& operator=(const Session&) = delete;
  ~Session();

  /// False in a forked child, where MPI must not be touched.
  bool is_at_home() const { return home_.is_here(); }

 private:
  const HomeProcess home_;
};

/// A peer was lost: nothing that waits may be called any more.
void mark_broken() noexcept;
bool is_broken() noexcept;

}  // namespace mpi_environment
}  // namespace kolo::comm

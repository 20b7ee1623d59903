#pragma once

namespace kolo::comm {

/// MPI in this process: started by Kolo, or by the program and joined.
///
/// Kolo finalises MPI only if it started it, at the end of the process, and not where a peer was
/// lost, since that would wait for it.
namespace mpi_environment {

/// Whether there is an MPI to join: it runs already, or a launcher started this process.
bool is_available();

/// Starts MPI, or joins the one that runs. Throws InvalidArgument, which shows the line to write,
/// where the program started it without MPI_THREAD_MULTIPLE or finalised it already; BackendError
/// where this MPI cannot do it.
void join();

/// A peer was lost: nothing that waits may be called any more.
void mark_broken() noexcept;
bool is_broken() noexcept;

}  // namespace mpi_environment
}  // namespace kolo::comm

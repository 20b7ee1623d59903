#pragma once

#pragma GCC visibility push(default)
namespace kolo {

/// Training that a scheduler is about to end saves, and leaves:
///
///     for (std::int64_t step = first; step < steps; ++step) {
///       …
///       if (kolo::preempted()) {
///         optimizer.save(folder);
///         return kolo::kPreemptedStatus;
///       }
///     }
///
/// A scheduler sends SIGTERM, or SIGUSR1 as Slurm does with `--signal=USR1@120`, and kills the
/// processes some time later; mpirun passes SIGUSR1 on to all ranks. From the first call on, one of
/// these signals to any rank does not end it, unless the program handles that signal; a second one,
/// more than a second later, does. docs/restart.md says what launchers do.

/// The exit status of a program that has saved and left, by which kolo-restart and job scripts see
/// that it goes on later: EX_TEMPFAIL of sysexits.h, try again.
inline constexpr int kPreemptedStatus = 75;

/// Whether a rank of the world has been asked to leave. Collective over the world and blocking, as
/// an all-reduce of one byte: the answer is the same on all ranks, so that they save at one step.
/// Call it equally often on all of them, such as once in each step.
///
/// @throws the errors of allreduce(); InvalidArgument where there is no Runtime
bool preempted();

/// Asks as the signal does, for what a program learns in another way, such as from a cloud's
/// metadata or when its time is up. Not collective: one rank suffices. Any thread.
void request_preemption();

}  // namespace kolo
#pragma GCC visibility pop

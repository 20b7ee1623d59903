#pragma once

#include <optional>
#include <string>

namespace kolo::comm {

/// The program that started this process as one of several, according to the environment.
struct Launcher {
  std::string name;
  std::string size_variable;  ///< empty: it does not export the number of processes
  int size = 0;               ///< 0: unknown
  int rank = -1;              ///< -1: unknown
  std::string job;            ///< the same in all processes of a job on a host, and only there
  std::string advice;         ///< how to start MPI programs with it
  bool starts_any_program = false;  ///< also those without MPI
};

/// Finds the launcher: Open MPI's mpirun, Hydra (MPICH and Intel MPI), MVAPICH, Slurm, PALS, Flux,
/// another one with PMIx, or torchrun, which MPI does not know. Returns nothing if none of these
/// started this process.
std::optional<Launcher> find_launcher();

/// Notes in the environment that Kolo has started in this process, for what follows.
void note_start(const std::optional<Launcher>& launcher);
/// Whether another copy of the library has started in this process.
bool has_another_copy_started();
/// Why MPI cannot start: a rank has started this process, which inherits its place in the job.
/// Empty if that is not so.
std::string problem_with_nested_start();

/// The reason why a world of one rank is a mistake, for an error text; empty if it is not.
std::string problem_with_world_of_one(const Launcher& launcher);

}  // namespace kolo::comm

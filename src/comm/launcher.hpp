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
  std::string job;            ///< equal in processes of one job on a host; others have other texts
  std::string advice;         ///< how MPI programs are started with it
};

/// Finds the launcher; nothing if no known one started this process: Open MPI's, MPICH's and Intel
/// MPI's Hydra, MVAPICH's, Slurm's, PALS and Flux, or another with PMIx.
std::optional<Launcher> find_launcher();

/// The reason why a world of one rank is a mistake, for an error text; empty if it is not.
std::string problem_with_world_of_one(const Launcher& launcher);

}  // namespace kolo::comm

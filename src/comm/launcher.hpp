#pragma once

#include <optional>
#include <string>

namespace kolo::comm {

/// The program that started this process as one of several, as the environment tells.
struct Launcher {
  std::string name;
  std::string size_variable;  ///< empty: it does not tell how many processes it started
  int size = 0;               ///< 0: unknown
  int rank = -1;              ///< -1: unknown
  std::string job;            ///< equal in processes of one job on a host; others have other texts
  std::string advice;         ///< how MPI programs are started with it
};

/// Nothing if none of the launchers that it knows did: Open MPI's, MPICH's and Intel MPI's Hydra,
/// MVAPICH's, Slurm's, PALS and Flux, or another with PMIx.
std::optional<Launcher> find_launcher();

/// Why a world of one rank cannot be meant, for an error text; empty if it can.
std::string problem_with_world_of_one(const Launcher& launcher);

}  // namespace kolo::comm

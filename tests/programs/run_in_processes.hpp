#pragma once

#include <string>

#include "programs/program.hpp"
#include "programs/run_program.hpp"
#include "support/mpi/mpi_ranks.hpp"

namespace kolo::programs {

/// Runs this process's rank of `program`, whose size is that of the MPI job. Collective; all ranks
/// return the same text, as run_in_threads does. A hang ends the job.
std::string run_in_processes(const Program& program, test::MpiRanks& ranks,
                             const RunOptions& options);

}  // namespace kolo::programs

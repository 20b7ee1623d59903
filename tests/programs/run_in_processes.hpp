#pragma once

#include <string>

#include "programs/program.hpp"
#include "programs/run_program.hpp"
#include "support/mpi/mpi_ranks.hpp"

namespace kolo::programs {

/// Runs this process's rank of `program`, which has as many ranks as the MPI job. Collective; all
/// ranks get the same answer, that of run_in_threads. A hang ends the job.
std::string run_in_processes(const Program& program, test::MpiRanks& ranks,
                             const RunOptions& options);

}  // namespace kolo::programs

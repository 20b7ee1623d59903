#include "comm/launcher.hpp"

#include <array>
#include <charconv>
#include <cstdlib>
#include <unistd.h>
#include <utility>

#include "comm/library_versions.hpp"

namespace kolo::comm {
namespace {

/// A launcher, identified by the variables that it sets.
struct Known {
  const char* name;
  const char* rank;
  const char* size;  // empty: none
  const char* job;   // empty: none
  const char* advice;
};

constexpr const char* kOwnLauncher =
    "Start the program by the mpirun of the MPI that it is linked with.";

// The order matters: mpirun may run inside a Slurm job, and Flux and PALS also set Hydra's
// variables.
constexpr std::array kKnown{
    Known{"Open MPI's mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_NAMESPACE",
          kOwnLauncher},
    Known{"MVAPICH's mpirun", "MVP_COMM_WORLD_RANK", "MVP_COMM_WORLD_SIZE", "", kOwnLauncher},
    Known{"MVAPICH2's mpirun", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "", kOwnLauncher},
    Known{"PALS", "PALS_RANKID", "PMI_SIZE", "PALS_APID",
          "Link the program with Cray MPICH, or start it by the mpirun of its own MPI."},
    Known{"Flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_JOB_ID",
          "Choose the program's MPI by flux run -o mpi=NAME (see flux help run), or use its mpirun "
          "inside of flux alloc."},
    Known{"mpiexec of MPICH or Intel MPI", "PMI_RANK", "PMI_SIZE", "", kOwnLauncher},
    Known{"Slurm's srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_JOB_ID",
          "Use srun --mpi=pmix or --mpi=pmi2, whichever the program's MPI was built for (srun "
          "--mpi=list has all), or its mpirun inside of the job."},
    Known{"a launcher with PMIx", "PMIX_RANK", "", "PMIX_NAMESPACE", kOwnLauncher},
};

std::string text_of(const char* variable) {
  const char* const value = *variable != '\0' ? std::getenv(variable) : nullptr;
  return value != nullptr ? value : "";
}

int number_in(const std::string& text, int otherwise) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && end == text.data() + text.size() ? number : otherwise;
}

}  // namespace

std::optional<Launcher> find_launcher() {
  for (const Known& known : kKnown) {
    const std::string rank = text_of(known.rank);
    const std::string size = text_of(known.size);
    const bool sets_size = *known.size != '\0';
    if (rank.empty() || (sets_size && size.empty())) continue;
    std::string job = text_of(known.job);
    // All processes of the job on this host have the same parent.
    if (job.empty()) job = "parent " + std::to_string(::getppid());
    return Launcher{known.name,          known.size,     number_in(size, 0),
                    number_in(rank, -1), std::move(job), known.advice};
  }
  return std::nullopt;
}

std::string problem_with_world_of_one(const Launcher& launcher) {
  if (launcher.size <= 1) return {};
  return launcher.name + " started " + std::to_string(launcher.size) + " processes (" +
         launcher.size_variable + "), but MPI has one rank in each, which would all work alone. " +
         "The program is linked with " + mpi_version() + ". " + launcher.advice +
         " KOLO_LAUNCHER=none makes each process a world of its own.";
}

}  // namespace kolo::comm

#include "comm/launcher.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <unistd.h>
#include <utility>

#include "comm/mpi_library.hpp"

namespace kolo::comm {
namespace {

/// A launcher, identified by the variables that it sets.
struct Known {
  const char* name;
  const char* rank;
  const char* size;  // null: none
  std::array<const char*, 2> job;
  const char* advice;
  bool starts_any_program = false;
  bool needs_job = false;  // others set the same rank and size
};

constexpr const char* kOwnLauncher =
    "Start the program by the mpirun of that MPI, or set KOLO_MPI_LIBRARY to the library of the "
    "MPI "
    "whose mpirun this is.";

// The order matters: mpirun and torchrun may run inside a Slurm job, and Flux and PALS also set
// Hydra's variables.
constexpr std::array kKnown{
    Known{
        "Whoever set KOLO_RANK", "KOLO_RANK", "KOLO_SIZE", {"KOLO_RENDEZVOUS"}, kOwnLauncher, true},
    Known{"Open MPI's mpirun",
          "OMPI_COMM_WORLD_RANK",
          "OMPI_COMM_WORLD_SIZE",
          {"PMIX_NAMESPACE"},
          kOwnLauncher},
    Known{"MVAPICH's mpirun", "MVP_COMM_WORLD_RANK", "MVP_COMM_WORLD_SIZE", {}, kOwnLauncher},
    Known{"MVAPICH2's mpirun", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", {}, kOwnLauncher},
    Known{"torchrun",
          "RANK",
          "WORLD_SIZE",
          {"TORCHELASTIC_RUN_ID"},
          "With MPI, use mpirun -np N in place of torchrun --nproc-per-node N.",
          true,
          /*needs_job=*/true},
    Known{"PALS",
          "PALS_RANKID",
          "PMI_SIZE",
          {"PALS_APID"},
          "Link the program with Cray MPICH, or start it by the mpirun of that MPI."},
    Known{"Flux",
          "FLUX_TASK_RANK",
          "FLUX_JOB_SIZE",
          {"FLUX_JOB_ID"},
          "Choose the program's MPI by flux run -o mpi=NAME (see flux help run), or use its mpirun "
          "inside of flux alloc.",
          true},
    Known{"mpiexec of MPICH or Intel MPI, or srun --mpi=pmi2,",
          "PMI_RANK",
          "PMI_SIZE",
          {},
          "Start the program by the mpirun of that MPI, or by srun with the "
          "--mpi that this MPI was built for (srun --mpi=list has all)."},
    Known{"Slurm's srun",
          "SLURM_PROCID",
          "SLURM_STEP_NUM_TASKS",
          {"SLURM_JOB_ID", "SLURM_STEP_ID"},
          "Use srun --mpi=pmix or --mpi=pmi2, whichever the program's MPI was built for (srun "
          "--mpi=list has all), or its mpirun inside of the job.",
          true},
    Known{"a launcher with PMIx", "PMIX_RANK", nullptr, {"PMIX_NAMESPACE"}, kOwnLauncher},
};

/// Empty if there is no such variable; null stands for none.
std::string text_of(const char* variable) {
  const char* const value = variable != nullptr ? std::getenv(variable) : nullptr;
  return value != nullptr ? value : "";
}

int number_in(const std::string& text, int otherwise) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && end == text.data() + text.size() ? number : otherwise;
}

constexpr const char* kStarted = "_KOLO_STARTED";  // "<pid> <place of that process in its job>"

std::atomic<bool> has_noted_start{false};  // by this copy of the library

std::string place_of(const std::optional<Launcher>& launcher) {
  return launcher ? std::to_string(launcher->rank) + " of " + launcher->job : "";
}

}  // namespace

std::optional<Launcher> find_launcher() {
  for (const Known& known : kKnown) {
    const std::string rank = text_of(known.rank);
    const std::string size = text_of(known.size);
    const bool sets_size = known.size != nullptr;
    if (rank.empty() || (sets_size && size.empty())) continue;
    std::string job;
    for (const char* variable : known.job) job += text_of(variable);
    if (known.needs_job && job.empty()) continue;
    // All processes of the job on this host have the same parent.
    if (job.empty()) job = "parent " + std::to_string(::getppid());
    return Launcher{.name = known.name,
                    .size_variable = sets_size ? known.size : "",
                    .size = number_in(size, 0),
                    .rank = number_in(rank, -1),
                    .job = std::move(job),
                    .advice = known.advice,
                    .starts_any_program = known.starts_any_program};
  }
  return std::nullopt;
}

void note_start(const std::optional<Launcher>& launcher) {
  if (has_noted_start.exchange(true)) return;
  const std::string text = std::to_string(::getpid()) + " " + place_of(launcher);
  ::setenv(kStarted, text.c_str(), /*overwrite=*/1);
}

bool has_another_copy_started() {
  return !has_noted_start && text_of(kStarted).starts_with(std::to_string(::getpid()) + " ");
}

std::string problem_with_nested_start() {
  const std::optional<Launcher> launcher = find_launcher();
  const std::string started = text_of(kStarted);
  const std::size_t space = std::min(started.find(' '), started.size());
  const std::string pid = started.substr(0, space);
  if (!launcher || pid.empty() || pid == std::to_string(::getpid()) ||
      started.substr(space + 1) != place_of(launcher)) {
    return {};
  }
  return "process " + pid + ", which is rank " + std::to_string(launcher->rank) +
         " of a job, has started this one, which has inherited the job's variables. It would start "
         "as that rank once more, and fail. Start it without the variables that begin with KOLO_, "
         "OMPI_, PMIX_, PMI_ and SLURM_, or, if it is to work alone, with KOLO_LAUNCHER=none.";
}

std::string problem_with_world_of_one(const Launcher& launcher) {
  if (launcher.size <= 1) return {};
  return launcher.name + " started " + std::to_string(launcher.size) + " processes (" +
         launcher.size_variable + "), but MPI has one rank in each, which would all work alone. " +
         "It has loaded " + mpi_version() + ". " + launcher.advice +
         " Without MPI, ranks start if KOLO_RENDEZVOUS names a new folder. "
         "KOLO_LAUNCHER=none makes each process a world of its own.";
}

}  // namespace kolo::comm

#include "comm/mpi_environment.hpp"

#include <mpi.h>

#include <array>
#include <atomic>
#include <cstdlib>

#include "comm/mpi_check.hpp"
#include "kolo/error.hpp"

namespace kolo::comm::mpi_environment {
namespace {

std::atomic<bool> broken{false};

bool is_initialized() {
  int flag = 0;
  KOLO_MPI_TRY(MPI_Initialized(&flag));
  return flag != 0;
}

bool is_finalized() {
  int flag = 0;
  KOLO_MPI_TRY(MPI_Finalized(&flag));
  return flag != 0;
}

void finalize_at_exit() {
  if (!broken && !is_finalized()) MPI_Finalize();
}

}  // namespace

bool is_available() {
  // Set by Open MPI's, MPICH's and Slurm's launchers for the processes they start.
  constexpr std::array kVariables{"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "PMI_RANK"};
  for (const char* const variable : kVariables) {
    if (std::getenv(variable) != nullptr) return true;
  }
  return is_initialized();
}

void join() {
  if (is_finalized()) {
    throw InvalidArgument("MPI has been finalised in this process. Make the last kolo::Runtime "
                          "before MPI_Finalize.");
  }
  int provided = MPI_THREAD_SINGLE;
  if (!is_initialized()) {
    KOLO_MPI_TRY(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided));
    std::atexit(finalize_at_exit);
    if (provided < MPI_THREAD_MULTIPLE) {
      throw BackendError("this MPI was built without MPI_THREAD_MULTIPLE, which Kolo needs");
    }
    return;
  }
  KOLO_MPI_TRY(MPI_Query_thread(&provided));
  if (provided < MPI_THREAD_MULTIPLE) {
    throw InvalidArgument(
        "the program started MPI without MPI_THREAD_MULTIPLE, which Kolo needs. Replace MPI_Init "
        "by: int provided; MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);");
  }
}

void mark_broken() noexcept { broken = true; }
bool is_broken() noexcept { return broken; }

}  // namespace kolo::comm::mpi_environment

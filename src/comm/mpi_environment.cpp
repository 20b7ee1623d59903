#include "comm/mpi_environment.hpp"

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <optional>

#include <mpi.h>

#include "comm/mpi_check.hpp"
#include "kolo/error.hpp"

namespace kolo::comm::mpi_environment {
namespace {

std::atomic<bool> broken{false};

std::mutex sessions_lock;
int sessions = 0;
bool is_ours = false;
bool is_exiting = false;
std::optional<HomeProcess> home;  // in which MPI was started or joined

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

/// Under the lock.
void finalize_if_due() {
  if (is_ours && is_exiting && sessions == 0 && !broken && !is_finalized()) MPI_Finalize();
}

// A Runtime that lives as long as the process ends after this handler and finalizes then.
void on_exit() {
  if (!home->is_here()) return;
  const std::lock_guard guard(sessions_lock);
  is_exiting = true;
  finalize_if_due();
}

void start(const StartWatch& watch, std::chrono::nanoseconds timeout) {
  int provided = MPI_THREAD_SINGLE;
  {
    const EndOnTimeout guard(watch, timeout);
    KOLO_MPI_TRY(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided));
  }
  is_ours = true;
  std::atexit(on_exit);
  if (provided < MPI_THREAD_MULTIPLE) {
    throw BackendError("this MPI was built without MPI_THREAD_MULTIPLE, which Kolo needs");
  }
}

void join_running() {
  int provided = MPI_THREAD_SINGLE;
  KOLO_MPI_TRY(MPI_Query_thread(&provided));
  if (provided < MPI_THREAD_MULTIPLE) {
    throw InvalidArgument(
        "the program started MPI without MPI_THREAD_MULTIPLE, which Kolo needs. Replace MPI_Init "
        "by: int provided; MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);");
  }
}

}  // namespace

int highest_tag() {
  void* value = nullptr;
  int is_there = 0;
  // Only this communicator is sure to have the attribute.
  KOLO_MPI_TRY(
      MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&value), &is_there));
  constexpr int kLeast = 32767;  // that MPI guarantees
  return is_there != 0 ? *static_cast<int*>(value) : kLeast;
}

bool is_running() { return is_initialized() && !is_finalized(); }

Session::Session(const StartWatch& watch, std::chrono::nanoseconds timeout) {
  const std::lock_guard guard(sessions_lock);
  if (!home) home.emplace();
  if (!home->is_here()) {
    throw InvalidArgument(
        "MPI belongs to the parent of this forked process. Start Kolo after fork(), or in the "
        "parent.");
  }
  if (is_finalized()) {
    throw InvalidArgument(
        "MPI has been finalised in this process. Make the last kolo::Runtime "
        "before MPI_Finalize.");
  }
  if (is_initialized()) {
    join_running();
  } else {
    start(watch, timeout);
  }
  ++sessions;
}

Session::~Session() {
  if (!is_at_home()) return;
  const std::lock_guard guard(sessions_lock);
  --sessions;
  finalize_if_due();
}

void mark_broken() noexcept { broken = true; }
bool is_broken() noexcept { return broken; }

}  // namespace kolo::comm::mpi_environment

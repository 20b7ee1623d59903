#include "comm/mpi_environment.hpp"

#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "base/log.hpp"
#include "base/mutex.hpp"
#include "comm/launcher.hpp"
#include "comm/mpi_library.hpp"
#include "kolo/error.hpp"
#include "kolo/mpi_lock.hpp"

namespace kolo::comm::mpi_environment {
namespace {

std::atomic<bool> broken{false};

Mutex sessions_lock;
int sessions KOLO_GUARDED_BY(sessions_lock) = 0;
bool is_ours KOLO_GUARDED_BY(sessions_lock) = false;
bool is_exiting KOLO_GUARDED_BY(sessions_lock) = false;
// The process in which MPI was initialized. Read without the lock, which a thread that a forked
// child does not have may hold.
std::optional<CreatorProcess> creator;

bool is_initialized() {
  int flag = 0;
  mpi().initialized(&flag);
  return flag != 0;
}

bool is_finalized() {
  int flag = 0;
  mpi().finalized(&flag);
  return flag != 0;
}

void finalize_if_due() KOLO_REQUIRES(sessions_lock) {
  if (is_ours && is_exiting && sessions == 0 && !broken && !is_finalized()) {
    mpi().finalize.code();
  }
}

// A Runtime with static lifetime ends after this handler, and finalizes MPI then.
void on_exit() {
  if (!creator->is_current()) return;
  const Lock guard(sessions_lock);
  is_exiting = true;
  finalize_if_due();
}

/// Open MPI raises SIGPIPE when it sends to a dead rank by TCP. The default action would end this
/// process without a word, before Kolo can report which rank died.
void ignore_sigpipe() {
  struct sigaction action{};
  ::sigaction(SIGPIPE, nullptr, &action);
  if (action.sa_handler == SIG_DFL) std::signal(SIGPIPE, SIG_IGN);
}

void warn_if_serialized(int level) {
  int rank = 0;
  mpi().comm_rank(mpi().comm_world, &rank);
  if (rank > 0 || level != kThreadSerialized) return;
  KOLO_LOG(Warn) << "MPI has granted MPI_THREAD_SERIALIZED instead of MPI_THREAD_MULTIPLE. The "
                    "program must hold a kolo::MpiLock during its MPI calls. docs/clusters.md has "
                    "the settings of some MPI libraries.";
}

void start(StartWatch& watch, std::chrono::nanoseconds timeout) KOLO_REQUIRES(sessions_lock) {
  if (std::string problem = problem_with_nested_start(); !problem.empty()) {
    throw InvalidArgument(problem);
  }
  // A process that aborts has said why. Without 6, SIGABRT, in Open MPI's default of 6,7,8,11.
  ::setenv("OMPI_MCA_opal_signal", "7,8,11", /*overwrite=*/0);
  int provided = kThreadSingle;
  {
    const EndOnTimeout guard(watch, timeout);
    mpi().init_thread(nullptr, nullptr, kThreadMultiple, &provided);
  }
  is_ours = true;
  std::atexit(on_exit);
  warn_if_serialized(provided);
}

/// MPI's thread level does not change once it runs.
int thread_level() {
  static const int level = [] {
    int provided = kThreadSingle;
    mpi().query_thread(&provided);
    return provided;
  }();
  return level;
}

void check_thread_level() KOLO_REQUIRES(sessions_lock) {
  if (thread_level() >= kThreadSerialized) return;
  const std::string level =
      thread_level() == kThreadFunneled ? "MPI_THREAD_FUNNELED" : "MPI_THREAD_SINGLE";
  const std::string needs =
      ", but Kolo needs MPI_THREAD_SERIALIZED at least, as its threads call MPI. ";
  if (is_ours) {
    throw InvalidArgument("MPI has granted " + level + needs +
                          "docs/clusters.md has the settings of some MPI libraries.");
  }
  throw InvalidArgument(
      "the program has initialized MPI with " + level + needs +
      "Write MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided) instead, and hold a "
      "kolo::MpiLock during MPI calls, or MPI_THREAD_MULTIPLE, which needs no lock; with mpi4py, "
      "mpi4py.rc.thread_level = \"multiple\" before \"from mpi4py import MPI\". Or construct "
      "kolo::Runtime before any MPI call: then Kolo initializes MPI.");
}

}  // namespace

int highest_tag() {
  void* value = nullptr;
  int is_there = 0;
  // Only MPI_COMM_WORLD is guaranteed to have the attribute.
  mpi().comm_get_attr(mpi().comm_world, mpi().tag_upper_bound, static_cast<void*>(&value),
                      &is_there);
  constexpr int kMinTagUpperBound = 32767;  // the minimum that MPI guarantees
  return is_there != 0 ? *static_cast<int*>(value) : kMinTagUpperBound;
}

std::unique_lock<std::recursive_mutex> lock_calls() {
  static std::recursive_mutex calls;
  if (loaded_mpi() == nullptr || thread_level() != kThreadSerialized) return {};
  return std::unique_lock(calls);
}

bool is_running() { return loaded_mpi() != nullptr && is_initialized() && !is_finalized(); }

bool has_any_thread() { return is_running() && thread_level() == kThreadMultiple; }

Session::Session(const std::string& library, StartWatch& watch, std::chrono::nanoseconds timeout) {
  load_mpi(library);
  const Lock guard(sessions_lock);
  if (!creator) creator.emplace();
  if (!creator->is_current()) {
    throw InvalidArgument(
        "MPI belongs to the parent of this forked process. Start Kolo after fork(), or in the "
        "parent.");
  }
  if (is_finalized()) {
    throw InvalidArgument(
        "MPI has been finalised in this process. Make the last kolo::Runtime "
        "before MPI_Finalize.");
  }
  if (!is_initialized()) start(watch, timeout);
  check_thread_level();
  ignore_sigpipe();
  ++sessions;
}

Session::~Session() {
  if (!is_in_creator_process()) return;
  const Lock guard(sessions_lock);
  --sessions;
  finalize_if_due();
}

void mark_broken() noexcept { broken = true; }
bool is_broken() noexcept { return broken; }

}  // namespace kolo::comm::mpi_environment

namespace kolo {

MpiLock::MpiLock() : calls_(comm::mpi_environment::lock_calls()) {}

}  // namespace kolo

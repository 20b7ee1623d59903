#include "comm/mpi_environment.hpp"

#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include <mpi.h>

#include "base/log.hpp"
#include "base/mutex.hpp"
#include "comm/launcher.hpp"
#include "kolo/error.hpp"
#include "kolo/mpi.hpp"

namespace kolo::comm {

void throw_mpi_error(int code, const char* call) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw BackendError(std::string(call) + " failed with code " + std::to_string(code) + ": " +
                     std::string(text.data(), static_cast<std::size_t>(length)));
}

}  // namespace kolo::comm

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
  KOLO_MPI_TRY(MPI_Initialized(&flag));
  return flag != 0;
}

bool is_finalized() {
  int flag = 0;
  KOLO_MPI_TRY(MPI_Finalized(&flag));
  return flag != 0;
}

void finalize_if_due() KOLO_REQUIRES(sessions_lock) {
  if (is_ours && is_exiting && sessions == 0 && !broken && !is_finalized()) MPI_Finalize();
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
  KOLO_MPI_TRY(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
  if (rank > 0 || level != MPI_THREAD_SERIALIZED) return;
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
  int provided = MPI_THREAD_SINGLE;
  {
    const EndOnTimeout guard(watch, timeout);
    KOLO_MPI_TRY(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided));
  }
  is_ours = true;
  std::atexit(on_exit);
  warn_if_serialized(provided);
}

/// MPI's thread level does not change once it runs.
int thread_level() {
  static const int level = [] {
    int provided = MPI_THREAD_SINGLE;
    KOLO_MPI_TRY(MPI_Query_thread(&provided));
    return provided;
  }();
  return level;
}

void check_thread_level() KOLO_REQUIRES(sessions_lock) {
  if (thread_level() >= MPI_THREAD_SERIALIZED) return;
  const std::string level =
      thread_level() == MPI_THREAD_FUNNELED ? "MPI_THREAD_FUNNELED" : "MPI_THREAD_SINGLE";
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
  KOLO_MPI_TRY(
      MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&value), &is_there));
  constexpr int kMinTagUpperBound = 32767;  // the minimum that MPI guarantees
  return is_there != 0 ? *static_cast<int*>(value) : kMinTagUpperBound;
}

std::unique_lock<std::recursive_mutex> lock_calls() {
  static std::recursive_mutex calls;
  if (thread_level() != MPI_THREAD_SERIALIZED) return {};
  return std::unique_lock(calls);
}

bool is_running() { return is_initialized() && !is_finalized(); }

Session::Session(StartWatch& watch, std::chrono::nanoseconds timeout) {
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

#ifdef KOLO_CUDA
#include <cuda_runtime_api.h>
#include <nccl.h>
#endif

namespace kolo::comm {

std::string mpi_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  KOLO_MPI_TRY(MPI_Get_library_version(text.data(), &length));
  const std::string_view version(text.data());  // some libraries count the final zero in `length`
  return std::string(version.substr(0, version.find('\n')));
}

std::string cuda_version() {
#ifdef KOLO_CUDA
  const auto number = [](int value) { return std::to_string(value); };
  return "CUDA " + number(CUDART_VERSION / 1000) + "." + number(CUDART_VERSION % 1000 / 10) +
         ", NCCL " + number(NCCL_MAJOR) + "." + number(NCCL_MINOR) + "." + number(NCCL_PATCH);
#else
  return "off";
#endif
}

}  // namespace kolo::comm

namespace kolo {

MpiLock::MpiLock() : calls_(comm::mpi_environment::lock_calls()) {}

}  // namespace kolo

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kolo/algorithm.hpp"
#include "kolo/config.hpp"
#include "kolo/process_set.hpp"
#include "kolo/reduction.hpp"

namespace kolo {

namespace comm {
class World;
}

/// How a Runtime starts.
struct InitOptions {
  /// By default from the environment; the same on all ranks.
  Config config = Config::from_environment();
  /// The world to run in, for tests that run ranks as threads; by default MPI under mpirun, or a
  /// world of one rank without it.
  std::shared_ptr<comm::World> world{};
  /// Process sets to start with, by their world ranks; the same on all ranks. Runtime::process_set
  /// finds them under the numbers from 1 on.
  std::vector<std::vector<int>> process_sets{};
  /// Algorithms of the program's own, to be chosen by name (KOLO_ALLREDUCE and the like), and
  /// reductions for ReduceOp::Custom. The same on all ranks; names outlive the Runtime.
  std::vector<Algorithm> algorithms{};
  std::vector<CustomReduction> reductions{};
};

/// Kolo on this rank, from construction to destruction. Construction and destruction are
/// collective: every rank of the world makes one, and the first to destroy its own closes the world
/// on all.
///
/// Joins the MPI that the program started, which needs MPI_THREAD_MULTIPLE, or starts it; MPI is
/// finalised only at the end of the process and only if Kolo started it, so another Runtime may be
/// made later. Without mpirun it is a world of one rank, and MPI is not touched.
///
/// While it exists, an uncaught exception anywhere in the process reaches every rank: each of them
/// ends with its text instead of waiting for the dead one.
///
/// It belongs to the process that made it. A forked child may end in any way without the ranks
/// noticing, and calls of Kolo there throw InvalidArgument.
///
/// The first Runtime of a process becomes the current one of all threads; see `current`.
class Runtime {
 public:
  /// Blocks until all ranks are there. Throws InvalidArgument where settings are malformed, or
  /// they, the process sets, algorithms or reductions differ between ranks, TimeoutError after
  /// KOLO_TIMEOUT, BackendError where MPI or the system fails.
  explicit Runtime(InitOptions options = {});
  /// Shuts down. Never throws and never hangs: a peer that does not answer within KOLO_LOST_AFTER
  /// counts as lost.
  ~Runtime();
  Runtime(const Runtime&) = delete;  // process sets and threads refer to it
  Runtime& operator=(const Runtime&) = delete;

  /// Leaves the world; what is pending on other ranks ends with ShutdownError there. Idempotent.
  void shutdown();

  int rank() const;
  int size() const;
  int local_rank() const;  ///< among the ranks of this node
  int local_size() const;
  int cross_rank() const;  ///< among the ranks of equal local rank, one a node
  int cross_size() const;
  /// True where all nodes have the same number of ranks.
  bool is_homogeneous() const;

  ProcessSet& world();

  /// A new process set of these world ranks, in any order. Collective over the world and blocking,
  /// for members and others alike; it lives as long as the Runtime. Several sets may have the same
  /// ranks: they run independently of each other. Throws InvalidArgument, on all ranks, for ranks
  /// that do not exist or are named twice, MismatchError where the lists differ between ranks.
  ProcessSet& add_process_set(std::vector<int> ranks);
  /// Closes a process set: what is pending there ends with ShutdownError, and nothing more can be
  /// submitted. Collective over the world and blocking. Throws InvalidArgument, on all ranks, for
  /// the world and for a set that has been removed already; MismatchError where ranks mean
  /// different sets.
  void remove_process_set(ProcessSet& set);
  /// By its number (ProcessSet::number). Throws InvalidArgument where there is none, or no more.
  ProcessSet& process_set(int number);

  const Config& config() const;

  /// The Runtime that functions without one use: the calling thread's, if `set_thread_current`
  /// named one, otherwise the process's first. Throws InvalidArgument where there is none.
  static Runtime& current();
  static bool has_current();
  /// Names the calling thread's own; null takes it back. Meant for ranks that are threads.
  static void set_thread_current(Runtime* runtime);

 private:
  class Parts;
  std::unique_ptr<Parts> parts_;
};

/// Short forms on `Runtime::current()`.
int rank();
int size();
int local_rank();
int local_size();
int cross_rank();
int cross_size();
bool is_homogeneous();

ProcessSet& add_process_set(std::vector<int> ranks);
void remove_process_set(ProcessSet& set);

/// A Runtime that the process owns, for programs that want no object: `init` makes it (a second
/// call does nothing), `shutdown` destroys it.
void init();
void shutdown();
bool is_initialized();

/// What this build contains: versions and paths, a line each.
std::string build_info();

}  // namespace kolo

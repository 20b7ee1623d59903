#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kolo/algorithm.hpp"
#include "kolo/config.hpp"
#include "kolo/process_set.hpp"
#include "kolo/reduction.hpp"
#include "kolo/store.hpp"

namespace kolo::comm {
class World;
}
namespace kolo::insight {
class Insight;
}

#pragma GCC visibility push(default)
namespace kolo {

/// How a Runtime starts.
struct InitOptions {
  /// Read from the environment by default; the same on all ranks.
  Config config = Config::from_environment();
  /// The communicator to run on, as a Fortran handle, which mpi_handle() of kolo/mpi.hpp returns.
  /// Default: `store`, else KOLO_RENDEZVOUS, else MPI_COMM_WORLD under mpirun, else one rank.
  std::optional<int> communicator{};
  /// Starts without MPI, with ranks that find each other in this store: `rank` of `size` ranks.
  /// Between hosts this needs UCX. Used until the Runtime is constructed.
  std::shared_ptr<Store> store{};
  int rank = 0;
  int size = 1;
  /// For tests that run ranks as threads.
  std::shared_ptr<comm::World> world{};
  /// World ranks of the initial process sets, the same on all ranks. Runtime::process_set returns
  /// them as numbers 1, 2, ….
  std::vector<std::vector<int>> process_sets{};
  /// Additional algorithms, selected by name (KOLO_ALGORITHM), and reductions for
  /// ReduceOp::Custom. The same on all ranks; their names outlive the Runtime.
  std::vector<Algorithm> algorithms{};
  std::vector<CustomReduction> reductions{};
  /// Additional codecs for Compression::named. Their names are the same on all ranks; the objects
  /// outlive the Runtime.
  std::vector<const Codec*> codecs{};
};

/// Runs Kolo on this rank from construction to destruction, both of which are collective.
///
///     int main() {
///       kolo::Runtime runtime;
///       …
///     }
///
/// Every rank of the world constructs one; the first rank that destroys its Runtime closes the
/// world on all ranks. The first Runtime of a process becomes current on all threads (see
/// current()). If the program passes a communicator, its ranks are the world: rank() and size() are
/// those of the communicator, and other processes do not take part. A process may have several
/// Runtimes, on the same or on different communicators, one after another or at the same time.
///
/// The Runtime initializes MPI if the program has not; a program that does so itself requests
/// MPI_THREAD_MULTIPLE, or MPI_THREAD_SERIALIZED and holds an MpiLock during its MPI calls: see
/// docs/clusters.md. MPI is finalized at the end of the process, and only if Kolo initialized it,
/// so another Runtime may follow. Without mpirun the world has one rank and MPI is not used, unless
/// the program passes a store, or KOLO_RENDEZVOUS names one: then the ranks of a host find each
/// other there.
///
/// If an exception is uncaught anywhere in the process, all ranks end with its text instead of
/// waiting for the rank that died. A forked child has no part in the Runtime: it may end in any
/// way, and Kolo's functions throw InvalidArgument in it.
class Runtime {
 public:
  /// Starts Kolo. Blocks until all ranks have started. With MPI, ignores SIGPIPE from now on unless
  /// the program handles it: a message to a rank that has died must not end this one.
  ///
  /// @throws InvalidArgument if a setting is malformed, if the communicator is null or an
  ///         intercommunicator, if MPI runs below MPI_THREAD_SERIALIZED or cannot be loaded, if a
  ///         launcher started several processes but MPI has one rank, or if settings, process sets,
  ///         algorithms, reductions or codecs differ between ranks
  /// @throws TimeoutError if a rank does not construct its Runtime within KOLO_START_TIMEOUT. If
  ///         Kolo initializes MPI, MPI_Init waits for all processes; on a timeout the process then
  ///         ends with a message
  /// @throws BackendError if MPI, UCX or the operating system fails; what InitOptions::store throws
  explicit Runtime(InitOptions options = {});
  /// Shuts down. Never throws. A rank that does not respond within KOLO_LOST_AFTER counts as lost.
  /// If an exception destroys it, the errors of the other ranks say so.
  ~Runtime();
  Runtime(const Runtime&) = delete;  // process sets and threads refer to it
  Runtime& operator=(const Runtime&) = delete;

  /// Does what an exception does that nothing catches, but for ending the process: operations end
  /// with PeerLostError on all ranks, whose text says that this rank `how`, as in "ended with an
  /// uncaught exception: ...". For programs whose exceptions C++ does not see, as those of Python.
  /// Only shutdown() follows, which gives the other ranks time to report; MPI is not finalized. Any
  /// thread; nothing happens in a forked child.
  void fail(const std::string& how);

  /// Leaves the world; operations that are pending on other ranks end with ShutdownError there. On
  /// rank 0 it also ends the operations on GPUs of all process sets. Any thread; further calls
  /// return once the first has ended.
  ///
  /// @throws InvalidArgument in a function that runs inside an operation, or of start_metrics()
  void shutdown();

  int rank() const;
  int size() const;
  int local_rank() const;  ///< rank within this node
  int local_size() const;
  int cross_rank() const;  ///< among the ranks of the same local rank, one on each node
  int cross_size() const;
  /// @return true if all nodes have the same number of ranks
  bool is_homogeneous() const;

  ProcessSet& world();

  /// Adds a process set. Collective over the world and blocking, on members and on other ranks.
  ///
  /// @param ranks world ranks in any order, the same on all ranks; another set may have the same
  /// @param matching the same on all ranks
  /// @return the set; the reference is valid until the set is removed, and as long as the Runtime
  ///         lives
  /// @throws InvalidArgument, on all ranks, if a rank does not exist or is named twice
  /// @throws MismatchError, on all ranks, if the lists differ
  /// @throws PeerLostError if a rank of the world is lost before all have agreed on the set, or a
  /// member while the set is being made; or if a member does not come within KOLO_LOST_AFTER of
  /// another loss. A rank that cannot make the set, for want of a thread or memory, is a loss to
  /// the others
  /// @throws TimeoutError after KOLO_TIMEOUT
  ProcessSet& add_process_set(std::vector<int> ranks, Matching matching = Matching::ByName);
  /// Makes a process set of which ranks other than its members learn nothing. Collective over the
  /// members and blocking: each calls it, one set at a time, and those that have several of them in
  /// common in the same order. Otherwise as above, but for the errors that only members see:
  ///
  /// GPUs: operations of sets matched by order are launched in the order of submission, which must
  /// be one order on all ranks, also in regard to what they submit to other sets that overlap.
  ///
  /// @param ranks this rank among them
  /// @param store shared by the members; used until the call returns
  /// @param timeout until all members have called it; default: KOLO_TIMEOUT
  /// @throws MismatchError, on all members, if `matching` differs
  /// @throws ShutdownError if a member has shut Kolo down instead; of a member that shares no
  ///   memory with this rank, only if it was the first of the world. PeerLostError if the process
  ///   of one on this host has ended
  /// @throws TimeoutError after `timeout`, as where lists differ: members that wait for one
  ///   another under different names. No further set of these ranks can be made then, since members
  ///   may differ in how many they have made. Whatever `store` throws
  ProcessSet& add_process_set(std::vector<int> ranks, Store& store,
                              Matching matching = Matching::ByName,
                              std::optional<std::chrono::nanoseconds> timeout = {});
  /// Closes a process set: its pending operations end with ShutdownError, and it accepts no more.
  /// What it holds is freed: shared memory, a thread, and later the object itself, unless the
  /// program keeps its shared_from_this(). Collective over the world, or over the members if they
  /// made it through a Store, and blocking. If it is matched by order and another member waits in
  /// an operation, that, too, ends with ShutdownError, which names the rank that has left.
  ///
  /// @throws InvalidArgument, on all ranks, for the world, for a set that was removed before, and
  ///   where a rank knows that others have joined the set, in which they wait for it; and in a
  ///   function that runs inside an operation of the set
  /// @throws MismatchError, on all ranks, if they name different sets
  void remove_process_set(ProcessSet& set);
  /// Finds a process set by ProcessSet::number.
  ///
  /// @throws InvalidArgument if there is none of that number, or it was removed
  ProcessSet& process_set(int number);

  const Config& config() const;
  /// For higher layers that add events; programs use kolo/insight.hpp.
  insight::Insight& insight() const;

  /// @return the Runtime that free functions use: the one of set_thread_current on this thread,
  ///         otherwise the first of the process
  /// @throws InvalidArgument if there is none
  static Runtime& current();
  static bool has_current();
  /// Makes `runtime` the calling thread's current one; null undoes it. For ranks that are threads.
  static void set_thread_current(Runtime* runtime);

 private:
  class Parts;
  std::unique_ptr<Parts> parts_;
};

/// The same for `Runtime::current()`.
int rank();
int size();
int local_rank();
int local_size();
int cross_rank();
int cross_size();
bool is_homogeneous();

ProcessSet& add_process_set(std::vector<int> ranks, Matching matching = Matching::ByName);
ProcessSet& add_process_set(std::vector<int> ranks, Store& store,
                            Matching matching = Matching::ByName,
                            std::optional<std::chrono::nanoseconds> timeout = {});
void remove_process_set(ProcessSet& set);

/// A Runtime that the process owns, for programs that keep no object: `init` constructs it (further
/// calls do nothing), `shutdown` destroys it.
void init(InitOptions options = {});
void shutdown();
bool is_initialized();

/// @return versions and paths of this build, one a line
std::string build_info();

}  // namespace kolo
#pragma GCC visibility pop

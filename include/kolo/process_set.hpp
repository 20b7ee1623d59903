#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace kolo::runtime {
class Engine;
}

#pragma GCC visibility push(default)
namespace kolo {

class Runtime;

/// How a process set finds out which calls of its ranks belong together.
enum class Matching : std::uint8_t {
  /// Calls of one name, in any order and at any time: the ranks agree on what to run next. Whatever
  /// is wrong on one rank becomes an error on all, and the set stays usable.
  ByName,
  /// The first call of each rank, then the second, and so on, as in MPI and c10d: nothing is agreed
  /// on, and a collective costs what its algorithm costs. Names are for texts alone.
  ///
  /// Invalid arguments throw at the call, on that rank alone, and nothing is submitted. Where ranks
  /// have submitted different operations, those that exchange data read it in each other's
  /// messages or shared memory: the set ends, on all ranks, with a MismatchError that names both.
  /// A rank whose result takes nothing from the one that differs, as the root of a broadcast, may
  /// have ended the operation by then; its next ones fail. In shared memory a rank gets at most
  /// three operations ahead of the others, even if it awaits nothing from them.
  /// An operation that a rank does not submit in time ends it with a TimeoutError, one that a rank
  /// no longer submits because it has left, with a ShutdownError. What an operation that failed has
  /// written is undefined. Operations on GPUs are launched in the order of submission, and are not
  /// compared. There is no join(), and DistributedOptimizer does not run on such a set.
  ByOrder,
};

/// A group of ranks that run collectives together; the world is one of them.
///
/// Sets may overlap and run independently of one another. The Runtime creates them; every rank of
/// the world knows those that it has agreed on, whether it is a member or not; only members know
/// those that were made through a Store. See Runtime::add_process_set. Objects that may outlive the
/// set or the Runtime keep its shared_from_this().
class ProcessSet : public std::enable_shared_from_this<ProcessSet> {
 public:
  /// @param engine null if this rank is not a member
  ProcessSet(Runtime& runtime, int number, std::vector<int> ranks, Matching matching,
             std::shared_ptr<runtime::Engine> engine);
  ProcessSet(const ProcessSet&) = delete;  // operations refer to it
  ProcessSet& operator=(const ProcessSet&) = delete;

  /// Whether this rank is a member.
  bool included() const { return engine_ != nullptr; }
  /// @return this rank's index in the set and in gathered results, 0 … size()-1; -1 if it is no
  ///         member
  int rank() const;
  int size() const { return static_cast<int>(ranks_.size()); }
  /// @return world ranks of the members, ascending
  const std::vector<int>& ranks() const { return ranks_; }
  /// @return "world", or the ranks as in "{0, 2}"
  std::string name() const;
  /// @return 0 for the world; sets added later are numbered from 1, the same on all ranks; sets
  ///   made through a Store have negative numbers, the same on all members
  int number() const { return number_; }
  Matching matching() const { return matching_; }
  /// @throws ShutdownError once the Runtime has been destroyed, or some time after the set's
  ///   removal
  Runtime& runtime() const;

  /// Names an operation that has no name.
  ///
  /// @return a name; the same on all members that make the same calls in the same order
  /// @throws InvalidArgument if this rank is not a member
  std::string next_name(std::string_view kind) const;

  /// Names an object whose operations begin with it, such as a layer or an optimizer. Unlike names
  /// from next_name(), which start anew after a join, it never repeats.
  ///
  /// @return a prefix; the same on all members that make the same calls in the same order
  /// @throws InvalidArgument if this rank is not a member
  std::string next_prefix(std::string_view kind) const;

  /// Allocates memory that the ranks of the set can access, for operations matched by order: where
  /// each rank's tensor lies in such memory, anywhere, they reduce it in place, and scatter and
  /// gather it, without copies. A local call. The memory is aligned to pages and not initialized;
  /// freed memory is kept for the next call. Any thread.
  ///
  /// @return null if the set is matched by name, its ranks run on several nodes or share no memory,
  ///   the system has no more, or the set has been removed
  /// @throws InvalidArgument if this rank is not a member
  std::shared_ptr<std::byte> allocate(std::size_t bytes) const;

  /// Counters of this set on this rank since it was created.
  struct Metrics {
    std::uint64_t exchanges = 0;            ///< header exchanges
    std::uint64_t fruitless_exchanges = 0;  ///< exchanges after which nothing could run
    std::uint64_t wake_up_requests = 0;     ///< exchanges that this rank requested
    std::uint64_t negotiations = 0;         ///< exchanges with a new or an inconsistent request
    std::uint64_t header_bytes = 0;         ///< bytes of headers published or sent by this rank
    std::uint64_t bytes_sent = 0;    ///< payload sent, or moved to or from others' shared memory
    std::uint64_t bytes_packed = 0;  ///< payload copied to fuse or to compress tensors
    /// Seconds that collectives took on this rank's GPU, including waits for other GPUs. Counts
    /// batches that were launched after the first call of metrics() and whose end the host has
    /// observed; of sums in rank order, the second half.
    double gpu_seconds = 0.0;
  };
  /// @throws InvalidArgument if this rank is not a member, or in a function that runs inside an
  ///         operation of the set
  Metrics metrics() const;

  /// For higher layers that submit their own operations.
  ///
  /// @throws InvalidArgument if this rank is not a member
  const std::shared_ptr<runtime::Engine>& engine() const;

 private:
  friend class Runtime;

  std::atomic<Runtime*> runtime_;  // null once it has been destroyed, or forgets the set
  int number_;
  std::vector<int> ranks_;
  Matching matching_;
  std::shared_ptr<runtime::Engine> engine_;
  std::atomic<bool> is_being_removed_{false};  // made through a Store: by one thread at a time
};

/// The process set that an option names, for functions that take one.
///
/// @param set null: the world of Runtime::current()
/// @throws InvalidArgument if this rank is not a member
ProcessSet& member_set(ProcessSet* set);

}  // namespace kolo
#pragma GCC visibility pop

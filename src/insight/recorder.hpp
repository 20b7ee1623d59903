#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.hpp"
#include "kolo/error.hpp"

namespace kolo::insight {

/// CLOCK_MONOTONIC: the processes of a host share it.
using Clock = std::chrono::steady_clock;

/// What the program's thread does between two calls of a DistributedOptimizer.
enum class Phase : std::uint8_t {
  None,      ///< no optimizer has been used yet
  Forward,   ///< and everything else after step()
  Backward,  ///< from the first gradient on
  Synced,    ///< backward() has ended, nothing has waited for gradients
  Step,      ///< from the first wait for gradients to the end of step()
};
std::string_view name_of(Phase phase);

/// One entry of a Recorder. Times count from the clock's epoch; those that are not reached are 0.
struct Event {
  enum class Kind : std::uint8_t {
    Pending,  ///< an operation that has not ended for a while, as of `time`
    Ended,    ///< an operation, from `begin` to `time`
    Phase,    ///< a phase of training; of Phase::Step `waited` is the step's exposed time
    Bucket,   ///< filled from `begin` on; submitted as the operation at `time`
    Mark,     ///< of the program; an instant if `begin` is `time`
  };
  using Time = std::chrono::nanoseconds;

  Kind kind = Kind::Mark;
  std::uint8_t collective = 0;  ///< kolo::Collective
  Phase phase = Phase::None;
  std::uint8_t failure = 0;      ///< 1 + ErrorKind; 0: none
  std::int32_t set = 0;          ///< ProcessSet::number
  std::uint32_t step = 0;        ///< counted from 1
  std::int32_t last_rank = -1;   ///< world rank whose submission the others waited for
  std::int32_t waited_for = -1;  ///< world rank that `waited` is due to, as far as known
  std::int32_t peer = -1;        ///< of a message: the other rank, in the world; -1: any
  std::uint64_t use = 0;         ///< the operation's number in its engine
  std::uint64_t turn = 0;        ///< the same on all ranks: how many the set has run before it, + 1
  std::uint64_t bytes = 0;
  Time time{};
  Time begin{};    ///< of operations: their submission
  Time agreed{};   ///< on running it
  Time started{};  ///< its data
  Time last_at{};  ///< when `last_rank` submitted it, on this rank's clock
  Time waited{};   ///< while its data moved: nothing advanced
};

/// The rank that an event belongs to.
struct Origin {
  int rank = 0;
  int size = 1;
  std::string host{};
  std::vector<int> node_of_rank{};  ///< see Topology
  bool shares_cores = false;        ///< see Topology
  std::uint64_t job = 0;            ///< the same on all ranks, another in each run
  Event::Time to_world_clock{0};    ///< from this host's clock to that of rank 0, as of the start
};

inline Event::Time time_of(Clock::time_point point) { return point.time_since_epoch(); }

#pragma GCC visibility push(default)  // libkolo.so uses it
/// The last events of a rank, in memory of fixed size that any thread writes without locks.
///
/// An event is lost if it is overwritten while it is read, or if the writer of its entry was
/// interrupted for as long as the others needed to fill all entries.
class Recorder {
 public:
  static constexpr std::size_t kCapacity = 8192;
  static constexpr std::size_t kMaxText = 80;

  explicit Recorder(Origin origin);
  Recorder(const Recorder&) = delete;  // threads write to it
  Recorder& operator=(const Recorder&) = delete;
  ~Recorder();

  const Origin& origin() const { return origin_; }

  /// Any thread. Keeps the last kMaxText bytes of the text.
  void add(const Event& event, std::string_view text) noexcept;

  struct Entry {
    Event event;
    std::string text;
  };
  /// Events so far; the newest has the number `count() - 1`.
  std::uint64_t count() const { return count_.load(std::memory_order_acquire); }
  /// None: the event has been overwritten, or is being written.
  std::optional<Entry> read(std::uint64_t number) const;

  struct Activity {
    Phase phase = Phase::None;
    std::uint32_t step = 0;
    Event::Time since{};
  };
  /// What the program does now. Any thread.
  Activity activity() const;
  /// The program enters a phase; the previous one becomes an event.
  /// A step ends where Phase::Forward begins.
  void enter(Phase phase) noexcept;

  /// A thread of the program has waited for an operation.
  void add_blocked(Event::Time duration) {
    blocked_.fetch_add(duration.count(), std::memory_order_relaxed);
  }
  /// All such waits so far.
  Event::Time blocked() const { return Event::Time{blocked_.load(std::memory_order_relaxed)}; }
  /// Steps that have ended, and the waits in them.
  std::uint64_t steps() const { return steps_.load(std::memory_order_relaxed); }
  Event::Time exposed() const { return Event::Time{exposed_.load(std::memory_order_relaxed)}; }
  /// When the last of them ended; 0: none has.
  Event::Time last_step() const { return Event::Time{last_step_.load(std::memory_order_relaxed)}; }

  /// Names a process set in traces, also after its end. Sets added long before lose their names.
  void name_set(int number, std::string name);
  /// "set 3" if it has no name.
  std::string name_of_set(int number) const;

  struct Problem {
    Failure failure;
    int lost_rank = -1;  ///< in the world; -1: none
    Event::Time time{};
  };
  /// Keeps the first errors, from which others follow, and the last one.
  void add(Problem problem);
  std::vector<Problem> problems() const;

 private:
  struct Slot;

  const Origin origin_;
  std::unique_ptr<Slot[]> slots_;
  std::atomic<std::uint64_t> count_{0};
  std::atomic<std::uint64_t> activity_{0};  // step and phase
  std::atomic<std::int64_t> since_{0};
  std::atomic<std::int64_t> blocked_{0};
  std::atomic<std::int64_t> blocked_before_{0};  // the current step
  std::atomic<std::uint64_t> steps_{0};
  std::atomic<std::int64_t> exposed_{0};
  std::atomic<std::int64_t> last_step_{0};
  mutable Mutex lock_;  // of what is rarely used
  std::map<int, std::string> sets_ KOLO_GUARDED_BY(lock_);
  std::deque<int> added_sets_ KOLO_GUARDED_BY(lock_);  // all but the world, oldest first
  std::vector<Problem> problems_ KOLO_GUARDED_BY(lock_);
};
#pragma GCC visibility pop

}  // namespace kolo::insight

#pragma once

#include <compare>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "base/deadline.hpp"
#include "base/mutex.hpp"
#include "comm/gpu/gpu.hpp"

namespace kolo::runtime {

class LaunchTurn;

/// The one order in which this process launches the batches of all its process sets on its GPU. A
/// collective occupies its GPU until all its ranks have launched it, so NCCL asks that ranks launch
/// the operations of overlapping communicators in one order, one at a time.
///
/// - By order: an operation gets the next place when it is submitted, as programs keep one order on
///   all ranks.
/// - The world's batches come in the coordinator's order, the same on all ranks. They divide all
///   others: a place says how many of the world's come before it.
/// - Other batches by name: each member proposes a place behind all that it knows, once all members
///   have come so far, and they take the last that any has proposed. Until then each keeps the
///   place that it has proposed, and so launches nothing that might come later.
/// - Between the two kinds: an operation by order is submitted only when those by name that were
///   submitted before have been launched.
///
/// So it cannot deadlock: on each rank places ascend. Those of batches by name are the same on all
/// their ranks, and those of operations by order come in the order of submission, which the program
/// keeps, also in regard to batches by name; so there is no circle between ranks. A batch waits
/// only for lower places, and the lowest of all ranks for nothing but messages, which take no part
/// in the order, since all its ranks have come so far. Any thread.
class LaunchQueue {
 public:
  /// An operation by name has been submitted, which lasts as long as the result.
  std::shared_ptr<LaunchTurn> announce();
  /// Waits until all that was announced has been launched, then takes the next place, for an
  /// operation by order of `set`. Throws TimeoutError, with `what`, at the deadline.
  std::shared_ptr<LaunchTurn> submit(int set, Deadline deadline, const std::string& what);
  /// For the world's next batch.
  std::shared_ptr<LaunchTurn> enter_world();
  /// For a batch by name of another set, of which all members have come so far.
  std::shared_ptr<LaunchTurn> propose(int set);

  /// The world has lost a rank: places wait for its batches no more.
  void lose_world();

  /// Passes when the GPU is about to start what was launched last, for the next to wait for; null:
  /// nothing has been launched. For the batch whose turn it is.
  std::shared_ptr<CUevent_st> last_launch();
  void set_last_launch(std::shared_ptr<CUevent_st> event);

 private:
  friend class LaunchTurn;
  struct Place {
    std::size_t world = 0;   ///< how many of the world's batches come before it, or are it
    std::size_t number = 0;  ///< behind that batch of the world, which has 0
    int set = 0;             ///< sets with a rank in common differ
    auto operator<=>(const Place&) const = default;
  };

  std::shared_ptr<LaunchTurn> take_next(int set, bool is_agreed) KOLO_REQUIRES(lock_);

  Mutex lock_;
  std::condition_variable_any none_announced_;
  int announced_ KOLO_GUARDED_BY(lock_) = 0;
  std::set<Place> line_ KOLO_GUARDED_BY(lock_);
  Place last_ KOLO_GUARDED_BY(lock_);             // that this rank knows of
  std::size_t world_ KOLO_GUARDED_BY(lock_) = 0;  // batches of the world that have come here
  std::shared_ptr<CUevent_st> last_launch_ KOLO_GUARDED_BY(lock_);
};

/// A place in the queue, until it is destroyed: the batch has been launched, or has failed.
class LaunchTurn {
 public:
  using Place = LaunchQueue::Place;

  /// Without a place: announced.
  explicit LaunchTurn(LaunchQueue& queue) : queue_(queue) {}
  LaunchTurn(LaunchQueue& queue, Place place, bool is_agreed)
      : queue_(queue), place_(place), is_agreed_(is_agreed) {}
  LaunchTurn(const LaunchTurn&) = delete;  // one place
  LaunchTurn& operator=(const LaunchTurn&) = delete;
  ~LaunchTurn();

  /// What members exchange to agree on the greatest.
  using Proposal = std::pair<std::size_t, std::size_t>;
  Proposal proposal() const { return {place_.world, place_.number}; }
  void agree(Proposal greatest);
  /// Awaitable: all that comes before has been launched.
  bool ready();

 private:
  LaunchQueue& queue_;
  Place place_;
  bool is_agreed_ = false;
};

}  // namespace kolo::runtime

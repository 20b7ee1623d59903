#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "runtime/data/operation.hpp"
#include "runtime/protocol/header_exchange.hpp"

namespace kolo::runtime {

/// Holds submissions of any thread to an engine until the next progress step takes them, and tracks
/// what is in flight.
class TensorQueue {
 public:
  /// `is_matched_by_order`: names are for texts alone.
  explicit TensorQueue(std::string process_set, bool is_matched_by_order = false)
      : process_set_(std::move(process_set)), is_matched_by_order_(is_matched_by_order) {}

  /// Throws InvalidArgument if operations are matched by name and one of that name is in flight,
  /// ShutdownError after `stop`.
  void submit(std::shared_ptr<Operation> operation);
  /// Throws InvalidArgument if a join is in flight, ShutdownError after `stop`.
  void join(std::shared_ptr<Operation> operation);
  /// A caller waits for the operation.
  void await(std::uint64_t use);
  /// This rank wants to leave the set.
  void leave(Leaving how);
  /// From now on submissions fail; `why` completes "process set world: ".
  void stop(std::string why);

  /// Names for unnamed operations: the same on all ranks that make the same calls in order.
  std::string next_name(std::string_view kind);
  /// A prefix for the names of an object's operations. Unlike names, it never repeats.
  std::string next_prefix(std::string_view kind);

  struct Taken {
    std::vector<std::shared_ptr<Operation>> operations;  ///< in the order of submission
    std::shared_ptr<Operation> join;                     ///< comes after `operations`; null: none
    std::vector<std::uint64_t> awaited;
    std::optional<Leaving> leaving;
  };
  /// Removes and returns everything submitted since the previous call.
  Taken take();

  /// The operation or join has ended: its name may be reused.
  void release(const Operation& operation);
  /// Operations and joins between `submit` and `release`.
  std::int64_t in_flight() const { return in_flight_.load(); }

 private:
  std::string about(const std::string& what) const;
  /// Otherwise the name is for texts alone.
  bool is_matched_by_name(const Operation& operation) const {
    return !is_matched_by_order_ && !operation.is_message();
  }

  const std::string process_set_;
  const bool is_matched_by_order_;
  Mutex mutex_;
  Taken incoming_ KOLO_GUARDED_BY(mutex_);
  bool has_joined_ KOLO_GUARDED_BY(mutex_) = false;  // a join is in flight
  std::unordered_set<std::string> names_in_flight_ KOLO_GUARDED_BY(mutex_);
  std::unordered_map<std::string, std::uint64_t> unnamed_ KOLO_GUARDED_BY(mutex_);
  std::uint64_t joins_ KOLO_GUARDED_BY(mutex_) = 0;  // that have ended, the same on all ranks
  std::uint64_t next_use_ KOLO_GUARDED_BY(mutex_) = 1;
  std::optional<std::string> stopped_ KOLO_GUARDED_BY(mutex_);  // why
  std::atomic<std::int64_t> in_flight_{0};
};

}  // namespace kolo::runtime

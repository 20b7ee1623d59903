#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "runtime/data/operation.hpp"
#include "runtime/protocol/header.hpp"

namespace kolo::runtime {

/// Holds submissions of any thread to a lane until the next progress step takes them, and tracks
/// what is in flight.
class TensorQueue {
 public:
  explicit TensorQueue(std::string process_set) : process_set_(std::move(process_set)) {}

  /// Throws InvalidArgument if an operation of that name is in flight, ShutdownError after
  /// `stop`.
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

  const std::string process_set_;
  std::mutex mutex_;
  Taken incoming_;
  bool has_joined_ = false;  // a join is in flight
  std::unordered_set<std::string> names_in_flight_;
  std::unordered_map<std::string, std::uint64_t> unnamed_;
  std::uint64_t joins_ = 0;  // that have ended, the same on all ranks
  std::uint64_t next_use_ = 1;
  std::optional<std::string> stopped_;  // why
  std::atomic<std::int64_t> in_flight_{0};
};

}  // namespace kolo::runtime

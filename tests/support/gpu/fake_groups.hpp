#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/gpu/fake_collective.hpp"
#include "support/gpu/fake_streams.hpp"
#include "support/gpu/launch_order.hpp"

namespace kolo::test {

/// Groups of ranks whose GPUs run collectives together, on fake streams. A collective runs once it
/// is at the head of every member's stream. Not thread-safe.
class FakeGroups {
 public:
  FakeGroups(FakeStreams& streams, int ranks)
      : streams_(streams),
        launched_(static_cast<std::size_t>(ranks)),
        latest_(static_cast<std::size_t>(ranks)) {}

  std::size_t make(int size);
  void join(std::size_t group, int member, int rank);
  bool is_complete(std::size_t group) const;

  struct Put {
    comm::DeviceStream stream;
    bool is_valid;  ///< if not on one member, it touches no memory on any
    bool is_first;  ///< of those that start together
  };
  /// Enqueues the member's next operation on a stream.
  void put(std::size_t group, int member, FakeCall call, const Put& how);
  bool has_pending(std::size_t group, int member) const;
  /// Empty unless ranks have launched collectives in orders that do not go together.
  std::string find_stuck() const { return order_.find_stuck(); }
  /// Removes the member's pending operations from their streams: they never run.
  void drop(std::size_t group, int member);
  /// The failure of a member's operation; empty if none has failed.
  const std::string& failure_of(std::size_t group, int member) const;

  /// Makes the `nth` collective of a rank, from 0 and counted over all groups, fail; with an empty
  /// `failure` it never runs.
  void inject_failure(int rank, std::size_t nth, std::string failure);

 private:
  struct Member {
    int rank = -1;  // until it joins
    std::size_t launched = 0;
    std::string failure;
  };
  struct Operation;
  /// A collective, and what its stream knew when it started.
  struct Early {
    std::string name;
    VectorClock start;
  };
  /// A reference to one member's arrival at an operation.
  struct Part {
    std::shared_ptr<Operation> operation;
    std::size_t member = 0;
  };
  /// One member's side of an operation.
  struct Arrival {
    enum class State : unsigned char { Expected, Launched, AtHead, Dropped };

    State state = State::Expected;
    bool is_done = false;
    bool is_valid = true;
    FakeCall call{};
    MemoryOperation accesses;
    VectorClock start;
    FakeStreams::Timeline timeline = 0;
    std::vector<Part> before;  // the rank's last operation in each other group before this one
    std::vector<Early> early;  // what was launched later and has started already
  };
  struct Operation {
    std::vector<Arrival> arrivals;
    bool is_done = false;
  };
  struct Group {
    std::vector<Member> members;
    std::vector<std::shared_ptr<Operation>> operations;
    std::size_t done = 0;  // how many of the operations, in order
  };
  struct InjectedFailure {
    std::string failure;
  };

  static bool is_pending(const Arrival& arrival);
  bool poll(Group& group, Operation& operation, std::size_t member, const InjectedFailure* injected,
            FakeStreams::Timeline timeline);
  /// Reports what the rank launched before in other groups if its start is not awaited, and what it
  /// launched later and does not await this start.
  void check_order(const Arrival& arrival);
  void check_order(const Arrival& earlier, const Early& later);
  bool try_run(Group& group, Operation& operation);

  FakeStreams& streams_;
  LaunchOrder order_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::vector<std::size_t> launched_;                // by rank
  std::vector<std::map<std::size_t, Part>> latest_;  // by rank, then by group
  std::map<std::pair<int, std::size_t>, InjectedFailure> injected_failures_;
};

}  // namespace kolo::test

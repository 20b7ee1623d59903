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

/// Groups of ranks whose GPUs do collectives together, on fake streams. A collective runs when all
/// members have come to it. Not for several threads at a time.
class FakeGroups {
 public:
  FakeGroups(FakeStreams& streams, int ranks)
      : streams_(streams), launched_(static_cast<std::size_t>(ranks)) {}

  std::size_t make(int size);
  void join(std::size_t group, int member, int rank);
  bool is_complete(std::size_t group) const;

  /// Puts the member's next operation on a stream. One that is not sound touches no memory, and the
  /// others' leave it as it was.
  void put(std::size_t group, int member, FakeCall call, comm::DeviceStream stream, bool is_sound);
  bool has_pending(std::size_t group, int member) const;
  /// Takes the member's pending operations from their streams: they never come.
  void drop(std::size_t group, int member);
  /// Why an operation of the member has failed; empty where none has.
  const std::string& failure_of(std::size_t group, int member) const;

  /// The `nth` collective operation of a rank, from 0 and whichever group it is of, fails, or never
  /// gets as far as the others where `failure` is empty.
  void disturb(int rank, std::size_t nth, std::string failure);

 private:
  struct Member {
    int rank = -1;  // until it joins
    std::size_t launched = 0;
    std::string failure;
  };
  /// What one member brings to an operation.
  struct Arrival {
    enum class State : unsigned char { Expected, Launched, AtHead, Dropped };

    State state = State::Expected;
    bool is_done = false;
    bool is_sound = true;
    FakeCall call{};
    MemoryOperation accesses;
    VectorClock start;
  };
  struct Meeting {
    std::vector<Arrival> arrivals;
    bool is_done = false;
  };
  struct Group {
    std::vector<Member> members;
    std::vector<std::shared_ptr<Meeting>> meetings;
    std::size_t done = 0;  // meetings, in order
  };
  struct Disturbance {
    std::string failure;
  };

  bool poll(Group& group, Meeting& meeting, std::size_t member, const Disturbance* disturbance,
            FakeStreams::Timeline timeline);
  bool meet(Group& group, Meeting& meeting);

  FakeStreams& streams_;
  LaunchOrder order_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::vector<std::size_t> launched_;  // by each rank
  std::map<std::pair<int, std::size_t>, Disturbance> disturbances_;
};

}  // namespace kolo::test

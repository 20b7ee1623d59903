#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "support/gpu/vector_clock.hpp"

namespace kolo::test {

using ByteRange = std::span<const std::byte>;

inline bool overlap(ByteRange one, ByteRange other) {
  return !one.empty() && !other.empty() && one.data() < other.data() + other.size() &&
         other.data() < one.data() + one.size();
}

/// An operation that accesses memory between its start and its end on one timeline.
struct MemoryOperation {
  std::string name;
  std::vector<ByteRange> reads{};
  std::vector<ByteRange> writes{};
  std::uint64_t order = 0;  ///< of launches; texts call the higher one the later operation
};

/// The happens-before graph of a program on hosts and streams, kept as a vector clock per timeline.
/// Two operations on the same bytes, at least one of them a write, are a hazard unless one happens
/// before the other. Hazards are collected as texts, never thrown.
///
/// Operations must be passed in an order in which the program could have run them: each after
/// everything that happens before it. Not thread-safe.
///
/// Launch by a host: join(stream, clock(host)) before the operation. Event: a copy of
/// clock(stream), which the waiting timeline joins. Collective: operate on each stream, then join
/// into each the clocks that the others had at their start.
class HappensBefore {
 public:
  using Timeline = std::size_t;

  Timeline add_timeline(std::string name);
  const VectorClock& clock(Timeline timeline) const { return timelines_[timeline].clock; }
  void join(Timeline timeline, const VectorClock& known);

  /// Something else has happened on a timeline.
  void tick(Timeline timeline) {
    VectorClock& clock = timelines_[timeline].clock;
    clock.set(timeline, clock.at(timeline) + 1);
  }
  /// The next operation on a timeline, ordered after everything that the timeline knows so far.
  void operate(Timeline timeline, const MemoryOperation& operation);
  /// New or reused memory.
  void allocate(Timeline timeline, ByteRange memory, std::uint64_t order);
  /// From now on an access is a hazard, until the memory is allocated again. `besides` is what else
  /// the freeing thread knows; it orders no later operation.
  void free(Timeline timeline, ByteRange memory, std::uint64_t order, const VectorClock& besides);

  /// Adds a hazard detected by another class.
  void report(std::string hazard) { hazards_.push_back(std::move(hazard)); }
  const std::vector<std::string>& hazards() const { return hazards_; }

 private:
  enum class Kind : std::uint8_t { Read, Write, Free };
  struct Node {
    std::string name;
    std::uint64_t order;
    Timeline timeline;
    std::uint64_t tick;
  };
  struct Access {
    std::shared_ptr<const Node> node;
    Kind kind;
  };
  /// Bytes from the key in `segments_` up to `end`, with their last accesses.
  struct Segment {
    std::uintptr_t end;
    std::vector<Access> accesses;
  };
  struct TimelineState {
    std::string name;
    VectorClock clock;
  };
  struct Interval {
    std::uintptr_t begin;
    std::uintptr_t end;
  };
  using Segments = std::map<std::uintptr_t, Segment>;
  /// The operations that conflict with one operation, each listed once, and the places.
  struct Conflict {
    Access other;
    Kind kind;
    Interval where;
  };

  static Interval interval_of(ByteRange range);
  std::shared_ptr<const Node> next_node(Timeline timeline, std::string name, std::uint64_t order);
  static bool contains(const VectorClock& known, const Access& earlier);
  /// Adds the conflicts with accesses that `known` does not contain.
  void check(const VectorClock& known, Interval interval, Kind kind,
             std::vector<Conflict>& conflicts);
  void note(const Access& access, Interval interval);
  void split_at(std::uintptr_t address);
  /// The range of segments that covers exactly `interval`.
  std::pair<Segments::iterator, Segments::iterator> segments_covering(Interval interval);
  std::string describe(const Node& node) const;
  std::string describe(const Node& node, const Conflict& conflict) const;

  std::vector<TimelineState> timelines_;
  Segments segments_;
  std::vector<std::string> hazards_;
};

}  // namespace kolo::test

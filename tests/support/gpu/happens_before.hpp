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

/// Something that touches memory between its start and its end on one timeline.
struct MemoryOperation {
  std::string name;
  std::vector<ByteRange> reads{};
  std::vector<ByteRange> writes{};
  std::uint64_t order = 0;  ///< of launches; the higher one is the later operation in texts
};

/// The happens-before graph of a program on hosts and streams, kept as a vector clock for each
/// timeline. Two operations that touch the same bytes, one of which writes, are a hazard unless one
/// happens before the other. Hazards are collected as texts, never thrown.
///
/// Operations are given in an order that the program could have run in: after all that happens
/// before them. Not for several threads at a time.
///
/// Host launches operation: join(stream, clock(host)) before it. Event: a copy of clock(stream),
/// joined by who waits. Collective: operate on each stream, then join into each the clocks that the
/// others had at their start.
class HappensBefore {
 public:
  using Timeline = std::size_t;

  Timeline add_timeline(std::string name);
  const VectorClock& clock(Timeline timeline) const { return timelines_[timeline].clock; }
  void join(Timeline timeline, const VectorClock& known);

  /// The next operation on a timeline: after all that the timeline knows so far.
  void operate(Timeline timeline, const MemoryOperation& operation);
  /// New memory, or memory that is used again.
  void allocate(Timeline timeline, ByteRange memory, std::uint64_t order);
  /// Memory that nobody may touch until it is allocated again.
  void free(Timeline timeline, ByteRange memory, std::uint64_t order);

  /// Adds a hazard that another class has found.
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
  /// Bytes from the key in `segments_` up to `end`, and who touched them last.
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
  /// The operations that one operation conflicts with, each once, and where.
  struct Conflict {
    Access other;
    Kind kind;
    Interval where;
  };

  static Interval interval_of(ByteRange range);
  std::shared_ptr<const Node> next_node(Timeline timeline, std::string name, std::uint64_t order);
  bool happens_before(const Access& earlier, Timeline timeline) const;
  void check(const Node& node, Interval interval, Kind kind, std::vector<Conflict>& conflicts);
  void note(const Access& access, Interval interval);
  void split_at(std::uintptr_t address);
  /// The segments, from the first to before the second, that make up exactly `interval`.
  std::pair<Segments::iterator, Segments::iterator> cover(Interval interval);
  std::string describe(const Node& node) const;
  std::string describe(const Node& node, const Conflict& conflict) const;

  std::vector<TimelineState> timelines_;
  Segments segments_;
  std::vector<std::string> hazards_;
};

}  // namespace kolo::test

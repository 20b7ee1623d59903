#include "support/gpu/happens_before.hpp"

#include <algorithm>
#include <sstream>
#include <utility>

namespace kolo::test {

HappensBefore::Timeline HappensBefore::add_timeline(std::string name) {
  timelines_.push_back({std::move(name), {}});
  return timelines_.size() - 1;
}

void HappensBefore::join(Timeline timeline, const VectorClock& known) {
  timelines_[timeline].clock.join(known);
}

void HappensBefore::operate(Timeline timeline, const MemoryOperation& operation) {
  const auto node = next_node(timeline, operation.name, operation.order);
  std::vector<Conflict> conflicts;
  for (const ByteRange range : operation.reads) {
    check(clock(timeline), interval_of(range), Kind::Read, conflicts);
  }
  for (const ByteRange range : operation.writes) {
    check(clock(timeline), interval_of(range), Kind::Write, conflicts);
  }
  for (const ByteRange range : operation.reads) note({node, Kind::Read}, interval_of(range));
  for (const ByteRange range : operation.writes) note({node, Kind::Write}, interval_of(range));
  for (const Conflict& conflict : conflicts) report(describe(*node, conflict));
}

void HappensBefore::allocate(Timeline timeline, ByteRange memory, std::uint64_t order) {
  const auto [first, last] = segments_covering(interval_of(memory));
  for (auto segment = first; segment != last; ++segment) {
    std::erase_if(segment->second.accesses,
                  [](const Access& access) { return access.kind == Kind::Free; });
  }
  operate(timeline, {.name = "allocate", .writes = {memory}, .order = order});
}

void HappensBefore::free(Timeline timeline, ByteRange memory, std::uint64_t order,
                         const VectorClock& besides) {
  const auto node = next_node(timeline, "free", order);
  VectorClock known = clock(timeline);
  known.join(besides);
  std::vector<Conflict> conflicts;
  check(known, interval_of(memory), Kind::Free, conflicts);
  note({node, Kind::Free}, interval_of(memory));
  for (const Conflict& conflict : conflicts) report(describe(*node, conflict));
}

HappensBefore::Interval HappensBefore::interval_of(ByteRange range) {
  const auto begin = reinterpret_cast<std::uintptr_t>(range.data());
  return {begin, begin + range.size()};
}

std::shared_ptr<const HappensBefore::Node> HappensBefore::next_node(Timeline timeline,
                                                                    std::string name,
                                                                    std::uint64_t order) {
  tick(timeline);
  return std::make_shared<const Node>(
      Node{std::move(name), order, timeline, clock(timeline).at(timeline)});
}

bool HappensBefore::contains(const VectorClock& known, const Access& earlier) {
  return known.at(earlier.node->timeline) >= earlier.node->tick;
}

void HappensBefore::check(const VectorClock& known, Interval interval, Kind kind,
                          std::vector<Conflict>& conflicts) {
  if (interval.begin == interval.end) return;
  auto segment = segments_.upper_bound(interval.begin);
  if (segment != segments_.begin()) --segment;
  for (; segment != segments_.end() && segment->first < interval.end; ++segment) {
    const Interval common{std::max(interval.begin, segment->first),
                          std::min(interval.end, segment->second.end)};
    if (common.begin >= common.end) continue;
    for (const Access& access : segment->second.accesses) {
      const bool is_harmless = (kind == Kind::Read && access.kind == Kind::Read) ||
                               (access.kind != Kind::Free && contains(known, access));
      if (is_harmless) continue;
      const auto same =
          std::find_if(conflicts.begin(), conflicts.end(), [&](const Conflict& listed) {
            return listed.other.node == access.node && listed.other.kind == access.kind &&
                   listed.kind == kind;
          });
      if (same == conflicts.end()) {
        conflicts.push_back({access, kind, common});
      } else {
        same->where = {std::min(same->where.begin, common.begin),
                       std::max(same->where.end, common.end)};
      }
    }
  }
}

void HappensBefore::note(const Access& access, Interval interval) {
  const auto is_free = [](const Access& known) { return known.kind == Kind::Free; };
  const auto [first, last] = segments_covering(interval);
  if (first == last) return;
  const bool is_freed = std::any_of(first, last, [&](const auto& segment) {
    return std::any_of(segment.second.accesses.begin(), segment.second.accesses.end(), is_free);
  });
  if (is_freed) return;  // a later access does not revive it
  if (access.kind != Kind::Read) {
    // Whoever waits for this operation has waited for all before it, or was reported.
    segments_.erase(first, last);
    segments_.emplace(interval.begin, Segment{interval.end, {access}});
    return;
  }
  for (auto segment = first; segment != last; ++segment) {
    std::erase_if(segment->second.accesses, [&](const Access& earlier) {
      return earlier.kind == Kind::Read && contains(clock(access.node->timeline), earlier);
    });
    segment->second.accesses.push_back(access);
  }
}

void HappensBefore::split_at(std::uintptr_t address) {
  auto segment = segments_.upper_bound(address);
  if (segment == segments_.begin()) return;
  --segment;
  if (segment->first == address || segment->second.end <= address) return;
  Segment rest = segment->second;
  segment->second.end = address;
  segments_.emplace(address, std::move(rest));
}

std::pair<HappensBefore::Segments::iterator, HappensBefore::Segments::iterator>
HappensBefore::segments_covering(Interval interval) {
  if (interval.begin == interval.end) return {segments_.end(), segments_.end()};
  split_at(interval.begin);
  split_at(interval.end);
  std::uintptr_t covered = interval.begin;
  for (auto segment = segments_.lower_bound(interval.begin); covered < interval.end;) {
    const bool is_inside = segment != segments_.end() && segment->first < interval.end;
    if (is_inside && segment->first == covered) {
      covered = segment->second.end;
      ++segment;
      continue;
    }
    const std::uintptr_t end = is_inside ? segment->first : interval.end;
    segments_.emplace_hint(segment, covered, Segment{end, {}});
    covered = end;
  }
  return {segments_.lower_bound(interval.begin), segments_.lower_bound(interval.end)};
}

std::string HappensBefore::describe(const Node& node) const {
  return "'" + node.name + "' (" + timelines_[node.timeline].name + ")";
}

std::string HappensBefore::describe(const Node& node, const Conflict& conflict) const {
  struct Side {
    const Node* node;
    Kind kind;
  };
  Side earlier{conflict.other.node.get(), conflict.other.kind};
  Side later{&node, conflict.kind};
  if (later.node->order < earlier.node->order) std::swap(earlier, later);
  const bool is_freed = earlier.kind == Kind::Free || later.kind == Kind::Free;
  const auto noun = [](Kind kind) { return kind == Kind::Read ? "read" : "write"; };
  const auto verb = [](Kind kind) {
    if (kind == Kind::Free) return " frees";
    return kind == Kind::Read ? " reads" : " writes";
  };
  std::ostringstream text;
  if (is_freed) {
    text << "use after free: ";
  } else {
    text << noun(later.kind) << " after " << noun(earlier.kind) << ": ";
  }
  text << describe(*later.node) << verb(later.kind) << " what " << describe(*earlier.node)
       << (earlier.kind == Kind::Free ? " has freed" : verb(earlier.kind));
  if (earlier.kind != Kind::Free) text << ", and does not wait for it";
  text << ": bytes 0x" << std::hex << conflict.where.begin << " to 0x" << conflict.where.end;
  return text.str();
}

}  // namespace kolo::test

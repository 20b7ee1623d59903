#pragma once

#include <algorithm>
#include <cstddef>
#include <list>
#include <map>
#include <optional>
#include <set>

#include "support/gpu/happens_before.hpp"

namespace kolo::test {

/// GPU memory that is registered with communicators. Not thread-safe.
class FakeRegistrations {
 public:
  struct Registration {
    std::size_t group;
    int member;
    int rank;
    ByteRange memory;
  };
  struct Count {
    int made = 0;
    int ended = 0;  ///< at most `made`

    bool operator==(const Count&) const = default;
  };

  Count count(int rank) const {
    const auto found = counts_.find(rank);
    return found == counts_.end() ? Count{} : found->second;
  }

  /// From now on refuses all memory of a rank, or memory at this address.
  void refuse(int rank) { refusing_.insert(rank); }
  void refuse(const std::byte* memory) { refused_.insert(memory); }

  /// Returns null if refused.
  void* add(Registration registration) {
    if (refusing_.contains(registration.rank)) return nullptr;
    if (refused_.contains(registration.memory.data())) return nullptr;
    ++counts_[registration.rank].made;
    return &live_.emplace_back(registration);
  }

  /// Returns its memory; empty if the member has no such registration.
  ByteRange remove(std::size_t group, int member, void* registration) {
    ByteRange memory;
    deregister_if([&](const Registration& known) {
      const bool is_match =
          &known == registration && known.group == group && known.member == member;
      if (is_match) memory = known.memory;
      return is_match;
    });
    return memory;
  }

  /// Ends all of a member's registrations.
  void drop(std::size_t group, int member) {
    deregister_if(
        [&](const Registration& known) { return known.group == group && known.member == member; });
  }

  bool has_some(std::size_t group, int member) const {
    return std::any_of(live_.begin(), live_.end(), [&](const Registration& known) {
      return known.group == group && known.member == member;
    });
  }
  /// Whether all of `memory` is registered with the member; nothing for empty memory.
  std::optional<bool> covers(std::size_t group, int member, ByteRange memory) const {
    if (memory.empty()) return std::nullopt;
    return std::any_of(live_.begin(), live_.end(), [&](const Registration& known) {
      return known.group == group && known.member == member &&
             known.memory.data() <= memory.data() &&
             memory.data() + memory.size() <= known.memory.data() + known.memory.size();
    });
  }
  bool is_known(ByteRange memory) const {
    return std::any_of(live_.begin(), live_.end(),
                       [&](const Registration& known) { return overlap(known.memory, memory); });
  }

 private:
  template <class Predicate>
  void deregister_if(Predicate is_match) {
    live_.remove_if([&](const Registration& known) {
      if (!is_match(known)) return false;
      ++counts_[known.rank].ended;
      return true;
    });
  }

  std::list<Registration> live_;
  std::map<int, Count> counts_;  // by rank
  std::set<int> refusing_;       // ranks
  std::set<const std::byte*> refused_;
};

}  // namespace kolo::test

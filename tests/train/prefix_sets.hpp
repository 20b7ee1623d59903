#pragma once

#include <array>
#include <cstddef>
#include <numeric>
#include <vector>

#include "kolo/process_set.hpp"
#include "kolo/runtime.hpp"

namespace kolo::test {

/// The process sets of a Runtime's first ranks, each of which is added when it is first used.
class PrefixSets {
 public:
  explicit PrefixSets(Runtime& runtime) : runtime_(runtime) {}

  /// The set of the first `ranks` ranks; the same object in every call. Collective.
  ProcessSet& first(int ranks) {
    if (ranks == runtime_.size()) return runtime_.world();
    ProcessSet*& set = sets_.at(static_cast<std::size_t>(ranks));
    if (set == nullptr) {
      std::vector<int> members(static_cast<std::size_t>(ranks));
      std::iota(members.begin(), members.end(), 0);
      set = &runtime_.add_process_set(members);
    }
    return *set;
  }

 private:
  Runtime& runtime_;
  std::array<ProcessSet*, 8> sets_{};  // by size
};

}  // namespace kolo::test

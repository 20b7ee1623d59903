#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace kolo::runtime {

/// "{0, 2}".
inline std::string list_of_ranks(const std::vector<int>& ranks) {
  std::string name = "{";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    name += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  }
  name += "}";
  return name;
}

/// The name of process set `number` with `ranks` in texts: "world", "{0, 2}".
inline std::string name_of_set(int number, const std::vector<int>& ranks) {
  return number == 0 ? "world" : list_of_ranks(ranks);
}

}  // namespace kolo::runtime

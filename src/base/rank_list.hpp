#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace kolo {

/// Names ranks in an error text: "rank 3", "ranks 0 and 2", "ranks 0, 2 and 5".
inline std::string list_ranks(std::span<const int> ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

/// The same for ranks of a process set; names their world ranks, which `members` lists.
inline std::string list_world_ranks(std::vector<int> ranks, std::span<const int> members) {
  for (int& rank : ranks) rank = members[static_cast<std::size_t>(rank)];
  return list_ranks(ranks);
}

}  // namespace kolo

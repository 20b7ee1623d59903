#pragma once

#include <cstddef>
#include <span>
#include <string>

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

}  // namespace kolo

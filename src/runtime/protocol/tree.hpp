#pragma once

#include <optional>
#include <vector>

namespace kolo::runtime {

/// A tree over the ranks with rank 0 as root, in which a rank has at most `width` children. The
/// children of rank r are width·r + 1 … width·r + width. A star if width ≥ size - 1.
struct Tree {
  std::optional<int> parent;  ///< none: this rank is the root
  std::vector<int> children;

  Tree(int rank, int size, int width) {
    if (rank > 0) parent = (rank - 1) / width;
    for (int child = width * rank + 1; child <= width * rank + width && child < size; ++child) {
      children.push_back(child);
    }
  }
};

}  // namespace kolo::runtime

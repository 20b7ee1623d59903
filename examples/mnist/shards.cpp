#include "mnist/shards.hpp"

#include <cmath>
#include <cstddef>

namespace mnist {

std::vector<std::int64_t> shard_bounds(std::int64_t count, int ranks, double imbalance) {
  const auto weight = [&](int rank) {
    return ranks > 1 ? 1 + imbalance * rank / (ranks - 1) : 1.0;
  };
  double total = 0;
  for (int rank = 0; rank < ranks; ++rank) total += weight(rank);
  std::vector<std::int64_t> bounds{0};
  double passed = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    passed += weight(rank);
    bounds.push_back(std::llround(static_cast<double>(count) * passed / total));
  }
  return bounds;
}

}  // namespace mnist

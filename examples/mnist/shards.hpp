#pragma once

#include <cstdint>
#include <vector>

namespace mnist {

/// Cuts `count` samples into one shard per rank, in order. The weight of a rank grows linearly from
/// 1 on the first to 1 + `imbalance` on the last. Returns where each shard begins, and `count`.
std::vector<std::int64_t> shard_bounds(std::int64_t count, int ranks, double imbalance);

}  // namespace mnist

#pragma once

#include <cstdint>
#include <vector>

namespace mnist {

/// How `count` samples are cut into one shard a rank, in order: rank r has a weight that grows
/// evenly from 1 on the first to 1 + `imbalance` on the last. Returns where each shard begins, and
/// `count`.
std::vector<std::int64_t> shard_bounds(std::int64_t count, int ranks, double imbalance);

}  // namespace mnist

#pragma once

#include "bench/cases/case.hpp"

namespace bench {

/// Gradients in the buckets that DistributedOptimizer would make of them.
struct BucketLayout {
  Layout buckets;    ///< what is reduced: each bucket as one tensor
  Layout gradients;  ///< inside the buckets, in their order
};

BucketLayout plan_buckets(const Workload& gradients);

}  // namespace bench

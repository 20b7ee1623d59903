#pragma once

#include "bench/cases/case.hpp"

namespace bench {

/// Gradients in the buckets that DistributedOptimizer would make of them.
struct BucketLayout {
  Layout buckets;    ///< what is reduced: all of a bucket as one
  Layout gradients;  ///< in these, bucket by bucket
};

BucketLayout plan_buckets(const Workload& gradients);

}  // namespace bench

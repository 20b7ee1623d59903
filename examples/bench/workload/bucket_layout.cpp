#include "bench/workload/bucket_layout.hpp"

#include <numeric>

#include "train/gradients/bucket_plan.hpp"

namespace bench {

BucketLayout plan_buckets(const Workload& gradients) {
  using namespace kolo::train;
  std::vector<PlannedParameter> parameters;
  for (const std::size_t count : gradients.counts) parameters.push_back({count, gradients.dtype});
  std::vector<std::size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const BucketPlan plan =
      kolo::train::plan_buckets(parameters, order, default_bucket_bytes(parameters));
  BucketLayout layout;
  layout.buckets.size_bytes = plan.size_bytes;
  layout.gradients.size_bytes = plan.size_bytes;
  for (const Bucket& bucket : plan.buckets) {
    layout.buckets.places.push_back({bucket.offset, bucket.offset, bucket.count()});
    for (const Bucket::Member& member : bucket.members) {
      layout.gradients.places.push_back(
          {member.offset, member.offset, gradients.counts[member.parameter]});
    }
  }
  return layout;
}

}  // namespace bench

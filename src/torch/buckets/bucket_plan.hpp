#pragma once

#include <cstddef>
#include <vector>

#include "kolo/dtype.hpp"

namespace kolo::tensors {

/// A parameter as the plan sees it.
struct PlannedParameter {
  static constexpr int kNoGroup = -1;

  std::size_t count = 0;  ///< elements in the bucket; of sparse gradients none
  DType dtype = DType::Float32;
  int group = kNoGroup;             ///< with which others it must share a bucket
  std::size_t optimizer_group = 0;  ///< with which others it may
};

/// A stretch of memory that is reduced as one: the gradients of some parameters of one type, in as
/// many equal parts as there are shards, then one element each that says whether this rank has that
/// gradient, and one whether it has not joined. All offsets, of parts too, are in bytes from the
/// start of the memory of all buckets, and multiples of 64.
struct Bucket {
  struct Member {
    std::size_t parameter;  ///< its index
    std::size_t offset;
  };
  DType dtype = DType::Float32;
  std::vector<Member> members;
  std::size_t offset = 0;
  std::size_t flags_offset = 0;
  std::size_t size_bytes = 0;

  std::size_t flag_count() const { return members.size() + 1; }
  std::size_t count() const { return size_bytes / size_of(dtype); }
  std::size_t gradient_count() const { return (flags_offset - offset) / size_of(dtype); }
};

struct BucketPlan {
  std::vector<Bucket> buckets;
  std::size_t size_bytes = 0;  ///< of all buckets
};

/// Fills buckets with the parameters in `order`, one after another per type, while they fit into
/// `bucket_bytes`; a larger one has a bucket of its own. The first bucket is full with a quarter of
/// that, so that the first reduction starts early.
/// A group makes one bucket per type, of whatever size. The gradients of each end in what makes
/// `shards` equal parts of them.
BucketPlan plan_buckets(const std::vector<PlannedParameter>& parameters,
                        const std::vector<std::size_t>& order, std::size_t bucket_bytes,
                        std::size_t shards = 1);

/// The same buckets in turns in the memory of `slots` of them: bucket i where bucket i - slots was.
BucketPlan recycle(BucketPlan plan, std::size_t slots);

/// Without a wish: a 16th of all gradients, 25 MiB at most.
std::size_t default_bucket_bytes(const std::vector<PlannedParameter>& parameters);

}  // namespace kolo::tensors

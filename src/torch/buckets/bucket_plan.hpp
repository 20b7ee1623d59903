#pragma once

#include <cstddef>
#include <vector>

#include "kolo/dtype.hpp"

namespace kolo::tensors {

/// A parameter as the plan sees it.
struct PlannedParameter {
  static constexpr int kNoGroup = -1;

  std::size_t count = 0;  ///< elements in the bucket; none for sparse gradients
  DType dtype = DType::Float32;
  int group = kNoGroup;             ///< parameters of one group share a bucket
  std::size_t optimizer_group = 0;  ///< parameters of two groups share no bucket
};

/// A contiguous range of memory that is reduced as one: the gradients of some parameters of one
/// type, padded so that they divide into equal shards, then the flags: one element a member that is 1
/// where this rank has the gradient, and one that is 1 unless the rank has joined. Offsets are in
/// bytes from the start of the memory of all buckets; they and the shards' are multiples of 64.
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
  std::size_t size_bytes = 0;  ///< of the memory of all buckets
};

/// Fills buckets with the parameters in `order`, separately for each type, up to `bucket_bytes`; a
/// larger parameter has a bucket of its own. The first bucket is closed at a quarter of that, so that
/// the first reduction starts early. A group makes one bucket for each type, of any size. Gradients
/// are padded to divide into `shards` equal shards.
BucketPlan plan_buckets(const std::vector<PlannedParameter>& parameters,
                        const std::vector<std::size_t>& order, std::size_t bucket_bytes,
                        std::size_t shards = 1);

/// The same buckets in the memory of `slots` of them: bucket i lies where bucket i - slots lay.
BucketPlan share_slots(BucketPlan plan, std::size_t slots);

/// The bucket size where the user gives none: a 16th of all gradients, 25 MiB at most.
std::size_t default_bucket_bytes(const std::vector<PlannedParameter>& parameters);

}  // namespace kolo::tensors

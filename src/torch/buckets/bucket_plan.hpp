#pragma once

#include <cstddef>
#include <vector>

#include "kolo/dtype.hpp"

namespace kolo::tensors {

inline constexpr std::size_t kBucketAlignment = 64;

struct PlannedParameter {
  static constexpr int kNoGroup = -1;

  std::size_t count = 0;  ///< elements in the bucket; none for sparse gradients
  DType dtype = DType::Float32;
  int group = kNoGroup;             ///< its parameters share a bucket
  std::size_t optimizer_group = 0;  ///< a bucket has parameters of one only
  bool may_split_group = false;     ///< into several buckets, if one is not enough
  bool is_compressed = true;        ///< a bucket has parameters that are, or that are not
};

/// A contiguous range of memory that is reduced at once: gradients of one dtype, padded so that
/// they divide into equal shards, then flags: one element for each member, which is 1 if this rank
/// has its gradient, and one that is 1 unless the rank has joined. Offsets are in bytes from the
/// start of the memory of all buckets; those of members and shards are multiples of 64.
struct Bucket {
  struct Member {
    std::size_t parameter;  ///< its index
    std::size_t offset;
  };
  DType dtype = DType::Float32;
  bool is_compressed = true;
  std::vector<Member> members;
  std::size_t offset = 0;
  std::size_t flags_offset = 0;
  std::size_t size_bytes = 0;

  std::size_t flag_count() const { return members.size() + 1; }
  std::size_t count() const { return size_bytes / size_of(dtype); }
  std::size_t gradient_count() const { return (flags_offset - offset) / size_of(dtype); }
  /// Of each of `shards` equal ones.
  std::size_t shard_bytes(std::size_t shards) const { return (flags_offset - offset) / shards; }
};

struct BucketPlan {
  std::vector<Bucket> buckets;
  std::size_t size_bytes = 0;  ///< of the memory of all buckets
  std::size_t slots = 0;       ///< of memory that buckets share; 0: each has its own
};

/// Fills buckets with the parameters in `order`, separately for each dtype and for those that are
/// compressed, up to `bucket_bytes`; a larger parameter has a bucket of its own. The first bucket
/// is closed at a quarter of that, so that the first reduction starts early. A group makes one
/// bucket for each dtype, of any size, and a second one if only some of its parameters are
/// compressed.
/// Gradients are padded so that they divide into `shards` equal shards; shards and buckets begin at
/// multiples of `alignment`, which is a multiple of 64.
BucketPlan plan_buckets(const std::vector<PlannedParameter>& parameters,
                        const std::vector<std::size_t>& order, std::size_t bucket_bytes,
                        std::size_t shards = 1, std::size_t alignment = kBucketAlignment);

/// The same buckets with a dtype of at least the size of `least`; their shards and members begin at
/// the same elements.
BucketPlan widen(BucketPlan plan, DType least);

/// The same buckets in `slots` slots of memory: bucket i lies in slot i % slots.
BucketPlan share_slots(BucketPlan plan, std::size_t slots);

/// A 16th of all gradients, 25 MiB at most.
std::size_t default_bucket_bytes(const std::vector<PlannedParameter>& parameters);

}  // namespace kolo::tensors

#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "kolo/dtype.hpp"
#include "kolo/process_set.hpp"

namespace kolo::train {

inline constexpr std::size_t kBucketAlignment = 64;

struct PlannedParameter {
  static constexpr int kNoGroup = -1;

  std::size_t count = 0;  ///< elements in the bucket; none for sparse gradients
  DType dtype = DType::Float32;
  int group = kNoGroup;          ///< its parameters share a bucket
  bool may_split_group = false;  ///< into several buckets, if one is not enough
  bool is_compressed = true;     ///< the same for all parameters of a bucket
  bool is_whole = false;         ///< it lies in one shard; the same for all of a bucket
};

/// A contiguous range of memory that is reduced in one operation: gradients of one dtype, padded so
/// that they divide into equal shards, then flags. Each member has one flag, which is 1 if this
/// rank has its gradient. In a plan's first bucket a digest follows, which ranks compare: a flag
/// for each of its bits, then one for each of their complements. The rank's flags follow; the last
/// is 1 unless the rank has joined. Offsets are in bytes from the start of the memory of all
/// buckets; offsets of members and shards are multiples of 64.
struct Bucket {
  static constexpr std::size_t kRankFlags = 2;
  static constexpr std::size_t kDigestBits = 32;

  struct Member {
    std::size_t parameter;  ///< its index
    std::size_t offset;
  };
  DType dtype = DType::Float32;
  bool is_compressed = true;
  bool is_whole = false;  ///< each member lies in one shard, whose rank owns it
  bool has_digest = false;
  std::vector<Member> members;
  std::size_t offset = 0;
  std::size_t flags_offset = 0;
  std::size_t size_bytes = 0;

  std::size_t flag_count() const {
    return members.size() + (has_digest ? 2 * kDigestBits : 0) + kRankFlags;
  }
  std::size_t count() const { return size_bytes / size_of(dtype); }
  std::size_t gradient_count() const { return (flags_offset - offset) / size_of(dtype); }
  /// The members as they lie in memory.
  std::vector<Member> members_by_offset() const;
  /// Bytes of each of `shards` equal shards.
  std::size_t shard_bytes(std::size_t shards) const { return (flags_offset - offset) / shards; }
};

struct BucketPlan {
  std::vector<Bucket> buckets;
  std::size_t size_bytes = 0;  ///< of the memory of all buckets
  std::size_t slots = 0;       ///< slots of memory that buckets share; 0: each has its own memory
};

/// Fills buckets with the parameters in `order`, separately for each dtype and for compressed and
/// uncompressed ones, up to `bucket_bytes`; a larger parameter gets its own bucket. The first
/// bucket is closed at a quarter of that, so that the first reduction starts early. A group becomes
/// one bucket per dtype, of any size, and a second one if only some of its parameters are
/// compressed.
/// Whole parameters share a bucket until they divide well among the shards, or fill `bucket_bytes`
/// in each.
/// Gradients are padded so that they divide into `shards` equal shards; shards and buckets begin at
/// multiples of `alignment`, which is a multiple of 64.
BucketPlan plan_buckets(const std::vector<PlannedParameter>& parameters,
                        const std::vector<std::size_t>& order, std::size_t bucket_bytes,
                        std::size_t shards = 1, std::size_t alignment = kBucketAlignment);

/// Gives the buckets a dtype at least as wide as `least`; their shards and members begin at the
/// same elements as before.
BucketPlan widen(BucketPlan plan, DType least);

/// Places the buckets in `slots` slots of memory: bucket i uses slot i % slots.
BucketPlan share_slots(BucketPlan plan, std::size_t slots);

/// A 16th of all gradients, 25 MiB at most; on a GPU at least 4 MiB.
std::size_t default_bucket_bytes(const std::vector<PlannedParameter>& parameters, bool is_on_gpu);

/// Records the order in which gradients arrive on this rank, and which of them are sparse. The next
/// layout of buckets follows it.
class ArrivalOrder {
 public:
  explicit ArrivalOrder(std::size_t parameters) : was_sparse_(parameters) {}

  void record(std::size_t parameter, bool is_sparse);

  /// The layout that all ranks use.
  struct Agreed {
    std::vector<std::size_t> order;  ///< of all parameters
    std::vector<bool> sparse;        ///< of each parameter: sparse on any rank
  };
  /// The order of the first rank of the set that has not joined; parameters without a gradient come
  /// last. Collective, under the name `name`.
  Agreed agree(ProcessSet& set, const std::string& name) const;

  /// `order` with every parameter once: missing ones are appended, the last parameter first.
  static std::vector<std::size_t> complete(std::vector<std::size_t> order, std::size_t parameters);

 private:
  std::vector<std::size_t> order_;  // may hold a parameter twice
  std::vector<bool> was_sparse_;
};

}  // namespace kolo::train

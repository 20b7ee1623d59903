#pragma once

#include "kolo/codec.hpp"
#include "kolo/compression.hpp"
#include "train/buckets/bucket_plan.hpp"

namespace kolo::train {

/// How the gradients of an optimizer are compressed.
struct GradientCompression {
  Compression compression;
  const Codec* codec = nullptr;  ///< of that name; null: it is a compressor
  /// Only without shards: the scope of the all-reduces.
  CompressionScope scope = CompressionScope::Everywhere;
  bool is_of_replicas = false;      ///< applies only to sums over ranks that hold the same shard
  bool has_error_feedback = false;  ///< of the codec

  /// For the sum over all ranks, or over those that hold different shards.
  Compression of(const Bucket& bucket) const {
    return is_of_replicas ? Compression() : of_replicas(bucket);
  }
  /// For the sum over the ranks that hold the same shard.
  Compression of_replicas(const Bucket& bucket) const {
    return bucket.is_compressed ? compression : Compression();
  }
  bool has_codec(const Bucket& bucket) const { return codec != nullptr && bucket.is_compressed; }
  /// Whether the codec encodes the reduction of the whole bucket, not that of shards.
  bool encodes_whole(const Bucket& bucket) const { return has_codec(bucket) && !is_of_replicas; }
  /// Whether the ranks of a node share one residual per bucket, each holding a part of it.
  bool has_residual_per_node() const { return is_of_replicas || is_piecewise(); }
  /// Whether a rank encodes its piece of its node's sum of a bucket.
  bool is_piecewise() const { return scope == CompressionScope::BetweenNodes; }
};

}  // namespace kolo::train

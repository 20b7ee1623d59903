#pragma once

#include <cstddef>
#include <cstdint>

#include "kolo/codec.hpp"
#include "kolo/compression.hpp"
#include "torch/buckets/bucket_plan.hpp"

namespace kolo::tensors {

/// How the gradients of an optimizer are compressed.
struct GradientCompression {
  Compression compression;
  const Codec* codec = nullptr;     ///< of that name; null: it is a compressor
  bool is_between_nodes = false;    ///< the codec's: not for reductions within a node
  bool has_error_feedback = false;  ///< of the codec

  /// Of the sum over all ranks, or over those that hold different shards.
  Compression of(const Bucket& bucket) const {
    return is_between_nodes && codec != nullptr ? Compression() : of_replicas(bucket);
  }
  /// Of the sum over the ranks that hold the same shard.
  Compression of_replicas(const Bucket& bucket) const {
    return bucket.is_compressed ? compression : Compression();
  }
  bool has_codec(const Bucket& bucket) const { return codec != nullptr && bucket.is_compressed; }
  /// Whether the codec encodes what this rank contributes of the whole bucket.
  bool encodes_whole(const Bucket& bucket) const { return has_codec(bucket) && !is_between_nodes; }

  /// Bytes that rank `rank` of `ranks` sends by the codec to all-reduce `count` elements.
  std::uint64_t allreduce_bytes(std::size_t count, int rank, int ranks) const;
  /// The same to reduce-scatter them, whose number is a multiple of `ranks`.
  std::uint64_t reduce_scatter_bytes(std::size_t count, int ranks) const;
};

}  // namespace kolo::tensors

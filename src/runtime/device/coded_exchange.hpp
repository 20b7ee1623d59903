#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/codec_format.hpp"
#include "kolo/task.hpp"
#include "ops/kernels/pieces.hpp"
#include "runtime/data/reduction_items.hpp"
#include "runtime/device/device_path.hpp"

namespace kolo::runtime {

/// Sums on GPUs through a codec. The algorithms, pieces and blocks are those of
/// ops/allreduce_coded.cpp and ops/reduce_scatter_coded.cpp on the CPU, and so are the bits:
///
///   1 contribute  every rank encodes piece p of its input and sends it to rank p, for all p
///   2 combine     rank p decodes and adds up piece p from all ranks, in rank order, in float32
///   3 gather      rank p encodes the sum and sends it to all ranks; all decode it (all-reduce)
///
/// A payload's size is known beforehand, so no rank waits for a GPU. The tensor is not cut into
/// segments: staging memory holds everything that is sent and received, and the sums of a piece in
/// float32.
class CodedExchange {
 public:
  /// `path` outlives it.
  explicit CodedExchange(const DevicePath& path) : path_(path) {}

  /// Multiplies sums by `scale`. The communicator has at least two ranks, and is ready before and
  /// after the call.
  Task all_reduce(base::CodecFormat format, ReductionItem item, double scale);
  /// Each rank keeps `counts[rank]` elements.
  Task reduce_scatter(base::CodecFormat format, ReductionItem item,
                      std::span<const std::size_t> counts, double scale);

 private:
  /// Staging memory of one exchange.
  struct Staging {
    std::byte* sent;
    std::byte* received;
    float* sum;
  };

  std::size_t rank() const { return static_cast<std::size_t>(path_.communicator.rank()); }
  std::size_t size() const { return static_cast<std::size_t>(path_.communicator.size()); }
  Task contribute(base::CodecFormat format, ReductionItem item, std::span<const ops::Range> pieces,
                  Staging staging);
  void combine(base::CodecFormat format, ReductionItem item, ops::Range own, Staging staging,
               float* residual);

  const DevicePath& path_;
};

}  // namespace kolo::runtime

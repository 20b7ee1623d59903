// Reduce-scatter through a codec: every rank gets all others' parts of its piece, encoded.
//
//   1 contribute  every rank encodes piece p of its input and sends it to rank p, for all p
//   2 combine     rank p decodes and adds up piece p from all ranks, in rank order, in float32
//
// Both are in coded_pieces.hpp. In place, a rank overwrites only its own piece, which it does not
// send. If it has a residual there, for instance after an all-reduce or a reduce-scatter with other
// pieces, that is added to the sum.
//
// Bytes: a rank sends (n-1)/n of its encoded input.
// Worlds: any size of two or more; meant for few ranks, since all pairs communicate at once.
#include <cmath>
#include <cstddef>
#include <span>

#include "ops/algorithms.hpp"
#include "ops/kernels/pieces.hpp"
#include "ops/steps/coded_pieces.hpp"
#include "ops/steps/contributions.hpp"
#include "ops/steps/messages.hpp"

namespace kolo::ops {
namespace {

void apply_residual(std::span<float> sum, float* residual) {
  for (std::size_t i = 0; i < sum.size(); ++i) {
    sum[i] += residual[i];
    if (std::isfinite(sum[i])) residual[i] = 0.0f;
  }
}

}  // namespace

Task reduce_scatter_coded(CollectiveCall call) {
  const int rank = call.communicator->rank();
  CodedContributions contributions(call, ranges_of(call.counts), kTag);
  const std::size_t begin = ranges_of(call.counts)[static_cast<std::size_t>(rank)].begin;
  const std::size_t segments = contributions.segments();
  if (segments > 0) contributions.start(0);
  for (std::size_t i = 0; i < segments; ++i) {
    co_await contributions.finish(i);
    if (i + 1 < segments) contributions.start(i + 1);
    const Range own = contributions.range(rank, i);
    const std::span<float> sum = contributions.sum(i);
    if (call.residual != nullptr) apply_residual(sum, call.residual + own.begin);
    write_scaled(call, own.begin - begin, sum);
    co_await yield();
  }
}

}  // namespace kolo::ops

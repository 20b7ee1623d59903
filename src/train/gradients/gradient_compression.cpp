#include "train/gradients/gradient_compression.hpp"

#include "ops/kernels/pieces.hpp"
#include "ops/steps/coded_pieces.hpp"

namespace kolo::train {

std::uint64_t GradientCompression::allreduce_bytes(std::size_t count, int rank, int ranks) const {
  std::uint64_t bytes = 0;
  for (int other = 0; other < ranks; ++other) {
    if (other == rank) continue;
    const auto length = [&](int of) {
      return ops::piece_of(count, ranks, of, codec->block()).length;
    };
    bytes += ops::coded_bytes(*codec, length(other), 1);
    bytes += ops::coded_bytes(*codec, length(rank), ranks);
  }
  return bytes;
}

std::uint64_t GradientCompression::reduce_scatter_bytes(std::size_t count, int ranks) const {
  const auto n = static_cast<std::size_t>(ranks);
  return (n - 1) * ops::coded_bytes(*codec, count / n, 1);
}

}  // namespace kolo::train

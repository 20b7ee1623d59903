#include "compare/largest.hpp"

#include <cmath>

namespace compare {
namespace {

constexpr int kMaxBlocks = 1024;   // of the largest model
constexpr int kFastestGrowth = 4;  // of the search, so that no guess takes all memory

}  // namespace

Largest find_largest(const std::function<MemoryUse(int blocks)>& measure, std::size_t budget) {
  const auto allowed = static_cast<double>(budget);
  Largest largest;
  int too_large = kMaxBlocks + 1;
  double last_bytes = 0;
  int last_blocks = 0;
  int blocks = 1;
  while (largest.blocks + 1 < too_large) {
    const MemoryUse use = measure(blocks);
    const double bytes = use.peak_bytes();
    if (bytes <= allowed) {
      largest = {blocks, use};
    } else {
      too_large = blocks;
    }
    const double bytes_of_a_block = (bytes - last_bytes) / (blocks - last_blocks);
    const double guess = bytes_of_a_block > 0 ? blocks + (allowed - bytes) / bytes_of_a_block
                                              : kFastestGrowth * blocks;
    last_bytes = bytes;
    last_blocks = blocks;
    const int highest = std::min(too_large - 1, kFastestGrowth * std::max(largest.blocks, 1));
    blocks = std::clamp(static_cast<int>(std::floor(std::min<double>(guess, kMaxBlocks))),
                        largest.blocks + 1, std::max(highest, largest.blocks + 1));
  }
  return largest;
}

}  // namespace compare

#include "checkpoint/checksums.hpp"

#include <algorithm>
#include <utility>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace kolo::checkpoints {

struct BlockChecksums::State {
  State() { XXH3_64bits_reset(&xxh3); }
  XXH3_state_t xxh3;
};

std::uint64_t checksum_of(const void* data, std::size_t bytes) { return XXH3_64bits(data, bytes); }

BlockChecksums::BlockChecksums() : state_(std::make_unique<State>()) {}
BlockChecksums::~BlockChecksums() = default;

void BlockChecksums::append(const void* data, std::size_t bytes) {
  const std::byte* next = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const std::size_t taken = std::min(bytes, static_cast<std::size_t>(kBlockBytes) - filled_);
    XXH3_64bits_update(&state_->xxh3, next, taken);
    next += taken;
    bytes -= taken;
    filled_ += taken;
    if (filled_ == static_cast<std::size_t>(kBlockBytes)) end_block();
  }
}

std::vector<std::uint64_t> BlockChecksums::finish() {
  if (filled_ > 0) end_block();
  return std::exchange(checksums_, {});
}

void BlockChecksums::end_block() {
  checksums_.push_back(XXH3_64bits_digest(&state_->xxh3));
  XXH3_64bits_reset(&state_->xxh3);
  filled_ = 0;
}

}  // namespace kolo::checkpoints

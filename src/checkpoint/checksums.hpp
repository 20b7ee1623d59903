#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace kolo::checkpoints {

/// Bytes of each block of a file's data that has a checksum; the last block may be shorter.
inline constexpr std::int64_t kBlockBytes = std::int64_t{1} << 20;

/// XXH3, 64 bits.
std::uint64_t checksum_of(const void* data, std::size_t bytes);

/// Computes the checksums of a stream's blocks.
class BlockChecksums {
 public:
  BlockChecksums();
  ~BlockChecksums();
  BlockChecksums(const BlockChecksums&) = delete;  // one stream, one state
  BlockChecksums& operator=(const BlockChecksums&) = delete;

  void append(const void* data, std::size_t bytes);
  /// Ends the stream. Returns the checksums of all blocks in order.
  std::vector<std::uint64_t> finish();

 private:
  struct State;

  void end_block();

  std::unique_ptr<State> state_;  // of the block that is not full yet
  std::size_t filled_ = 0;        // bytes of it
  std::vector<std::uint64_t> checksums_;
};

}  // namespace kolo::checkpoints

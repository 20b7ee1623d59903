#include "torch/checkpoint/block_reader.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "kolo/error.hpp"
#include "torch/checkpoint/block_checksums.hpp"

namespace kolo::train {
namespace {

std::int64_t block_bytes(const CheckpointIndex::File& file, std::int64_t block) {
  return std::min(kBlockBytes, file.data_bytes() - block * kBlockBytes);
}

}  // namespace

BlockReader::BlockReader(const std::filesystem::path& folder, const CheckpointIndex::File& about)
    : about_(about), file_(folder / about.name) {
  if (file_.size() == about.bytes) return;
  throw InvalidArgument(
      "file '" + file_.path().string() + "' has " + std::to_string(file_.size()) +
      " bytes instead of " + std::to_string(about.bytes) +
      (file_.size() < about.bytes ? ": it is truncated" : ": it is another file"));
}

void BlockReader::verify_header() const {
  std::vector<std::byte> header(static_cast<std::size_t>(about_.header_bytes));
  file_.read(0, about_.header_bytes, header.data());
  if (checksum_of(header.data(), header.size()) == about_.header_checksum) return;
  throw InvalidArgument("file '" + file_.path().string() +
                        "' is damaged or another file: the checksum of its header differs");
}

void BlockReader::read(std::int64_t offset, std::int64_t bytes, void* target) {
  std::byte* place = static_cast<std::byte*>(target);
  while (bytes > 0) {
    const std::int64_t block = offset / kBlockBytes;
    const std::int64_t start = offset % kBlockBytes;
    const std::int64_t size = block_bytes(about_, block);
    const std::int64_t taken = std::min(bytes, size - start);
    if (place != nullptr && taken == size) {
      read_block(block, place);
    } else {
      if (block != held_) {
        held_ = -1;
        block_.resize(static_cast<std::size_t>(size));
        read_block(block, block_.data());
        held_ = block;
      }
      if (place != nullptr) {
        std::memcpy(place, block_.data() + start, static_cast<std::size_t>(taken));
      }
    }
    if (place != nullptr) place += taken;
    offset += taken;
    bytes -= taken;
  }
}

void BlockReader::read_block(std::int64_t block, void* target) const {
  const std::int64_t begin = about_.header_bytes + block * kBlockBytes;
  const std::int64_t size = block_bytes(about_, block);
  file_.read(begin, size, target);
  const std::uint64_t expected = about_.block_checksums[static_cast<std::size_t>(block)];
  if (checksum_of(target, static_cast<std::size_t>(size)) == expected) return;
  throw InvalidArgument("file '" + file_.path().string() + "' is damaged between bytes " +
                        std::to_string(begin) + " and " + std::to_string(begin + size - 1) +
                        ": their checksum differs");
}

}  // namespace kolo::train

#include "support/gpu/fake_device_memory.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace kolo::test {
namespace {

// An implausible value in every type.
constexpr std::byte kNewByte{0xCD};
constexpr std::byte kFreedByte{0xDD};

}  // namespace

std::byte* FakeDeviceMemory::allocate(int rank, std::size_t bytes) {
  Block block{rank, std::vector<std::byte>(std::max(bytes, std::size_t{1}), kNewByte)};
  std::byte* const begin = block.bytes.data();
  blocks_.emplace(begin, std::move(block));
  return begin;
}

ByteRange FakeDeviceMemory::block_at(const std::byte* begin) const {
  return blocks_.find(begin)->second.bytes;
}

void FakeDeviceMemory::poison(const std::byte* begin) {
  std::vector<std::byte>& bytes = blocks_.find(begin)->second.bytes;
  std::fill(bytes.begin(), bytes.end(), kFreedByte);
}

std::string FakeDeviceMemory::problem_with(std::optional<int> rank, ByteRange range) const {
  if (range.empty()) return {};
  const auto next = blocks_.upper_bound(range.data());
  if (next == blocks_.begin()) return "memory of no GPU";
  const Block& block = std::prev(next)->second;
  const std::byte* const end = block.bytes.data() + block.bytes.size();
  if (!std::less<>()(range.data(), end)) return "memory of no GPU";
  if (end < range.data() + range.size()) return "more than was allocated there";
  if (rank && block.rank != *rank) return "memory of the GPU of rank " + std::to_string(block.rank);
  return {};
}

}  // namespace kolo::test

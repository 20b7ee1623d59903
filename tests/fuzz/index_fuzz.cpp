// Feeds text to the parser of a checkpoint's index.json: as it is, and after a first line with the
// right format and checksum, which mutations would not find. Beyond "no crash":
//   - a rejected text throws InvalidArgument;
//   - memory stays within a multiple of the text's size;
//   - an accepted text encodes to an index of the same content;
//   - the slices of a whole index hold each element once, within their files.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/safetensors.hpp"
#include "checkpoint/signed_index.hpp"
#include "fuzz/fuzz_target.hpp"
#include "kolo/error.hpp"

namespace kolo::fuzz {
namespace {

using checkpoints::bytes_of;
using checkpoints::CheckpointIndex;
using checkpoints::elements_of;
using checkpoints::encode_index;
using checkpoints::parse_index;
using checkpoints::require_whole;

constexpr std::size_t kLargestGrowth = 512;  // of JSON: "[0,0," takes a node for every other byte
constexpr std::size_t kConstant = 1 << 14;

void require_consistent(const CheckpointIndex& index) {
  for (const auto& [name, tensor] : index.tensors) {
    std::int64_t count = 0;
    for (const CheckpointIndex::Slice& slice : tensor.slices) {
      const CheckpointIndex::File& file = index.files.at(slice.file);
      require(slice.begin == count, "slices follow one another");
      count += slice.count;
      require(slice.offset + bytes_of(tensor.dtype, slice.count) <= file.data_bytes(),
              "a slice lies in its file");
    }
    require(elements_of(tensor.shape) == count, "slices hold all elements");
  }
}

void require_same(const CheckpointIndex& a, const CheckpointIndex& b) {
  require(a.details == b.details, "encoding keeps the details");
  require(a.files.size() == b.files.size(), "encoding keeps the number of files");
  for (std::size_t i = 0; i < a.files.size(); ++i) {
    const auto fields = [](const CheckpointIndex::File& file) {
      return std::tie(file.name, file.bytes, file.header_bytes, file.header_checksum,
                      file.block_checksums);
    };
    require(fields(a.files[i]) == fields(b.files[i]), "encoding keeps every file");
  }
  require(a.tensors.size() == b.tensors.size(), "encoding keeps the number of tensors");
  for (const auto& [name, tensor] : a.tensors) {
    const CheckpointIndex::Tensor& other = b.tensors.at(name);
    require(tensor.dtype == other.dtype && tensor.shape == other.shape,
            "encoding keeps every tensor");
    require(std::equal(tensor.slices.begin(), tensor.slices.end(), other.slices.begin(),
                       other.slices.end(),
                       [](const CheckpointIndex::Slice& one, const CheckpointIndex::Slice& two) {
                         return std::tie(one.file, one.begin, one.count, one.offset) ==
                                std::tie(two.file, two.begin, two.count, two.offset);
                       }),
            "encoding keeps every slice");
  }
}

bool is_whole(const CheckpointIndex& index) {
  try {
    require_whole(index);
    return true;
  } catch (const InvalidArgument&) {
    return false;
  }
}

void parse(const std::string& text) {
  CheckpointIndex index;
  try {
    const AllocationBudget budget(text.size() * kLargestGrowth + kConstant);
    index = parse_index(text);
  } catch (const InvalidArgument&) {
    return;
  }
  require_same(index, parse_index(encode_index(index)));
  if (is_whole(index)) require_consistent(index);
}

}  // namespace

std::vector<std::string> seeds() {
  // Deep enough to overflow the stack of a recursive reader.
  const std::string deep(100'000, '[');
  return {encode_index({}), R"("files":)" + deep,
          R"("files":[{"name":"x","bytes":)" + deep + std::string(deep.size(), ']') + "}]}",
          R"("files":[],"tensors":{},"details":)" + deep + std::string(deep.size(), ']') + "}"};
}

}  // namespace kolo::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(kolo::fuzz::text_of(data, size));
  kolo::fuzz::parse(text);
  kolo::fuzz::parse(kolo::test::signed_text("\n" + text, "kolo checkpoint", 1));
  return 0;
}

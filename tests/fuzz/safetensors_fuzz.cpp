// Feeds the header of a safetensors file: its JSON, a newline, and the number of data bytes in the
// file. The reader of whole files gets the file made of these, and also the input itself as a file.
// Beyond "no crash":
//   - a rejected header throws InvalidArgument;
//   - memory stays within a multiple of the text's size;
//   - an accepted header encodes to a header of the same tensors;
//   - every tensor of an accepted file can be read.

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "checkpoint/safetensors.hpp"
#include "comm/file_descriptor.hpp"
#include "fuzz/fuzz_target.hpp"
#include "kolo/error.hpp"

namespace kolo::fuzz {
namespace {

using checkpoints::bytes_of;
using checkpoints::elements_of;
using checkpoints::encode_safetensors_header;
using checkpoints::parse_safetensors_header;
using checkpoints::SafetensorsEntries;
using checkpoints::SafetensorsEntry;
using checkpoints::SafetensorsReader;
using checkpoints::SafetensorsTensor;

constexpr std::size_t kLargestGrowth = 512;
constexpr std::size_t kConstant = 1 << 14;
constexpr std::int64_t kMaxDataBytes = 1 << 16;  // larger ones are not made into a file

struct Case {
  std::string_view header;
  std::int64_t data_bytes = 0;
};

Case case_of(std::string_view text) {
  Case taken{text};
  const std::size_t end = text.rfind('\n');
  if (end == std::string_view::npos) return taken;
  taken.header = text.substr(0, end);
  std::from_chars(text.data() + end + 1, text.data() + text.size(), taken.data_bytes);
  taken.data_bytes = std::max<std::int64_t>(taken.data_bytes, 0);
  return taken;
}

std::vector<SafetensorsTensor> in_file_order(const SafetensorsEntries& header) {
  std::vector<std::pair<std::pair<std::int64_t, std::int64_t>, SafetensorsTensor>> placed;
  for (const auto& [name, place] : header) {
    const std::int64_t bytes = bytes_of(*place.dtype, elements_of(place.shape).value());
    placed.push_back({{place.offset, bytes}, {name, *place.dtype, place.shape}});
  }
  std::sort(placed.begin(), placed.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<SafetensorsTensor> tensors;
  for (auto& [key, tensor] : placed) tensors.push_back(std::move(tensor));
  return tensors;
}

void require_same(const SafetensorsEntries& a, const SafetensorsEntries& b) {
  require(a.size() == b.size(), "encoding keeps the number of tensors");
  for (const auto& [name, place] : a) {
    const SafetensorsEntry& other = b.at(name);
    require(
        place.dtype == other.dtype && place.shape == other.shape && place.offset == other.offset,
        "encoding keeps every tensor");
  }
}

void parse_header(const Case& input) {
  SafetensorsEntries header;
  try {
    const AllocationBudget budget(input.header.size() * kLargestGrowth + kConstant);
    header = parse_safetensors_header(input.header, input.data_bytes);
  } catch (const InvalidArgument&) {
    return;
  }
  for (const auto& [name, place] : header) {
    if (!place.dtype) return;  // Kolo does not write it
  }
  const std::string again = encode_safetensors_header(in_file_order(header));
  require_same(header,
               parse_safetensors_header(std::string_view(again).substr(8), input.data_bytes));
}

/// Creates a file without a name.
comm::FileDescriptor make_file(std::string_view bytes, std::int64_t zeros) {
  comm::FileDescriptor file(::memfd_create("fuzz", MFD_CLOEXEC));
  require(file.is_open(), "memfd_create works");
  const auto written = ::write(file.get(), bytes.data(), bytes.size());
  require(written == static_cast<ssize_t>(bytes.size()), "the file takes all bytes");
  require(::ftruncate(file.get(), written + zeros) == 0, "the file grows");
  return file;
}

void read_file(std::string_view bytes, std::int64_t zeros) {
  const comm::FileDescriptor file = make_file(bytes, zeros);
  try {
    const SafetensorsReader reader("/proc/self/fd/" + std::to_string(file.get()));
    for (const auto& [name, place] : reader.tensors()) {
      if (!place.dtype) continue;
      const std::int64_t count = elements_of(place.shape).value();
      std::vector<std::byte> values(static_cast<std::size_t>(bytes_of(*place.dtype, count)));
      reader.read(name, *place.dtype, 0, values);
    }
  } catch (const InvalidArgument&) {
  }
}

}  // namespace

std::vector<std::string> seeds() {
  // Deep enough to overflow the stack of a recursive reader.
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  return {encode_safetensors_header({{"a", {}, {0}}}),
          R"({"a":{"dtype":"U8","shape":[)" + deep + R"(],"data_offsets":[0,1]}})" + "\n1"};
}

}  // namespace kolo::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kolo::fuzz;
  const std::string_view text = text_of(data, size);
  const Case input = case_of(text);
  parse_header(input);
  read_file(text, 0);
  if (input.data_bytes <= kMaxDataBytes) {
    std::string file(8, '\0');
    for (std::size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(input.header.size() >> (8 * i));
    read_file(file.append(input.header), input.data_bytes);
  }
  return 0;
}

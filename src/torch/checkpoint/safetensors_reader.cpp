#include "torch/checkpoint/safetensors_reader.hpp"

#include <array>

#include "kolo/error.hpp"
#include "torch/checkpoint/tensor_slice.hpp"

namespace kolo::train {
namespace {

constexpr auto kHeaderBegin = static_cast<std::int64_t>(kLengthBytes);
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the format's limit

std::string read_header(const FileReader& file) {
  std::array<unsigned char, kLengthBytes> bytes{};
  if (file.size() < kHeaderBegin) throw InvalidArgument("it is truncated before its header");
  file.read(0, kHeaderBegin, bytes.data());
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) length |= std::uint64_t{bytes[i]} << (8 * i);
  if (length > kMaxHeaderBytes) {
    throw InvalidArgument("it claims a header of " + std::to_string(length) + " bytes, more than " +
                          std::to_string(kMaxHeaderBytes));
  }
  if (static_cast<std::int64_t>(length) > file.size() - kHeaderBegin) {
    throw InvalidArgument("it is truncated: its header has " + std::to_string(length) + " bytes");
  }
  std::string header(length, '\0');
  file.read(kHeaderBegin, static_cast<std::int64_t>(length), header.data());
  if (!header.starts_with('{')) throw InvalidArgument("its header does not begin with {");
  return header;
}

}  // namespace

SafetensorsReader::SafetensorsReader(const std::filesystem::path& path) : file_(path) {
  try {
    const std::string header = read_header(file_);
    data_begin_ = kHeaderBegin + static_cast<std::int64_t>(header.size());
    header_ = parse_safetensors_header(header, file_.size() - data_begin_);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument("file '" + path.string() +
                          "' is not a safetensors file: " + error.what());
  }
}

void SafetensorsReader::read(const std::string& name, DType dtype, std::int64_t begin,
                             std::span<std::byte> target) const {
  const std::string what = "file '" + file_.path().string() + "': tensor '" + name + "' ";
  const auto found = header_.tensors.find(name);
  if (found == header_.tensors.end()) throw InvalidArgument(what + "is not in it");
  const SafetensorsHeader::Place& tensor = found->second;
  try {
    if (!tensor.dtype) {
      throw InvalidArgument("is " + tensor.dtype_name + ", a type that Kolo does not have");
    }
    require_range(*tensor.dtype, tensor.shape, dtype, begin, elements_in(target, dtype));
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(what + error.what());
  }
  file_.read(data_begin_ + tensor.offset + bytes_of(dtype, begin),
             static_cast<std::int64_t>(target.size()), target.data());
}

}  // namespace kolo::train

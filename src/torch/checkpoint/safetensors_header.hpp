#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kolo/dtype.hpp"

/// The safetensors file format: eight bytes with the header's length, the header in JSON, then the
/// elements of all tensors without gaps.
namespace kolo::train {

/// The header's length comes first, little-endian.
inline constexpr std::size_t kLengthBytes = 8;

struct SafetensorsTensor {
  std::string name;
  DType dtype = DType::Float32;
  std::vector<std::int64_t> shape;

  bool operator==(const SafetensorsTensor&) const = default;
};

/// "F32" for DType::Float32. "C128", for complex128, is for indexes of checkpoints only.
std::string_view safetensors_name(DType dtype);
std::optional<DType> dtype_from_safetensors(std::string_view name);

/// The start of a file with the data of these tensors, in this order; the data begins at a multiple
/// of 64 bytes. The format has no complex128: such a tensor becomes F64 with a last dimension of 2,
/// and the metadata "kolo.complex128" lists its name. Throws InvalidArgument if two names are
/// equal, a name is not UTF-8 or is "__metadata__", or a shape is impossible.
std::string encode_safetensors_header(const std::vector<SafetensorsTensor>& tensors);

struct SafetensorsHeader {
  struct Place {
    std::optional<DType> dtype;  ///< nothing if Kolo has none like it
    std::string dtype_name;
    std::vector<std::int64_t> shape;
    std::int64_t offset = 0;  ///< in bytes, from the start of the data
  };
  std::map<std::string, Place> tensors;
};

/// Parses a header, without the length before it, of a file with `data_bytes` of data. Throws
/// InvalidArgument if it violates the format: other keys, types or lengths, tensors that overlap or
/// leave gaps.
SafetensorsHeader parse_safetensors_header(std::string_view json, std::int64_t data_bytes);

}  // namespace kolo::train

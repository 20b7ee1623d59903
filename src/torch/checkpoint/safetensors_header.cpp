#include "torch/checkpoint/safetensors_header.hpp"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "kolo/error.hpp"
#include "torch/checkpoint/json_fields.hpp"
#include "torch/checkpoint/printable.hpp"
#include "torch/checkpoint/tensor_slice.hpp"

namespace kolo::train {
namespace {

constexpr std::string_view kMetadata = "__metadata__";
constexpr std::string_view kComplex128 = "kolo.complex128";  // the names of such tensors, in JSON
constexpr std::size_t kDataAlignment = 64;

std::int64_t whole_bytes(const std::string& name, DType dtype,
                         const std::vector<std::int64_t>& shape) {
  const std::optional<std::int64_t> count = elements_of(shape);
  if (!count) throw InvalidArgument("tensor '" + name + "' has an impossible shape");
  return bytes_of(dtype, *count);
}

std::string with_length(const std::string& json) {
  const std::size_t end = (kLengthBytes + json.size() + kDataAlignment - 1) / kDataAlignment;
  std::string header;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    header += static_cast<char>((end * kDataAlignment - kLengthBytes) >> (8 * i));
  }
  header += json;
  header.resize(end * kDataAlignment, ' ');
  return header;
}

void require_metadata(const nlohmann::json& object) {
  if (!object.is_object()) throw InvalidArgument("its metadata is not a JSON object");
  for (const auto& [key, value] : object.items()) {
    if (!value.is_string()) throw InvalidArgument("its metadata '" + key + "' is not a string");
  }
}

/// Turns float64 tensors that are named in the metadata into complex ones.
void restore_complex128(const nlohmann::json& metadata, SafetensorsHeader& header) {
  const auto names = metadata.find(kComplex128);
  if (names == metadata.end()) return;
  for (const nlohmann::json& name : parse_json(names->get<std::string>())) {
    const auto found = header.tensors.find(name.get<std::string>());
    if (found == header.tensors.end() || found->second.dtype != DType::Float64 ||
        found->second.shape.empty() || found->second.shape.back() != 2) {
      throw InvalidArgument("its metadata has a complex128 tensor '" +
                            printable(name.get<std::string>()) + "', which is not F64 [..., 2]");
    }
    found->second.dtype = DType::Complex128;
    found->second.shape.pop_back();
  }
}

struct Range {
  std::int64_t begin;
  std::int64_t end;
  std::string name;
};

SafetensorsHeader::Place to_place(const std::string& name, const nlohmann::json& entry,
                                  std::vector<Range>& ranges) {
  if (!entry.is_object() || entry.size() != 3) {
    throw InvalidArgument("it does not have exactly dtype, shape and data_offsets");
  }
  const std::string dtype_name = entry.at("dtype").get<std::string>();
  const std::optional<DType> dtype = dtype_from_safetensors(dtype_name);
  const std::vector<std::int64_t> offsets = to_counts(entry.at("data_offsets"));
  const std::vector<std::int64_t> shape = to_counts(entry.at("shape"));
  if (offsets.size() != 2 || offsets[0] > offsets[1]) {
    throw InvalidArgument("its data_offsets are not a range");
  }
  const std::int64_t bytes = whole_bytes(name, dtype.value_or(DType::UInt8), shape);
  if (dtype && offsets[1] - offsets[0] != bytes) {
    throw InvalidArgument("its shape takes " + std::to_string(bytes) + " bytes, its data_offsets " +
                          std::to_string(offsets[1] - offsets[0]));
  }
  ranges.push_back({offsets[0], offsets[1], name});
  return {dtype, dtype_name, shape, offsets[0]};
}

void require_no_gaps(std::vector<Range> ranges, std::int64_t data_bytes) {
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::int64_t end = 0;
  for (const Range& range : ranges) {
    if (range.begin != end) {
      throw InvalidArgument("tensor '" + range.name + "' begins at byte " +
                            std::to_string(range.begin) + " of the data instead of " +
                            std::to_string(end) + ", where the one before it ends");
    }
    end = range.end;
  }
  if (end != data_bytes) {
    throw InvalidArgument("its tensors take " + std::to_string(end) +
                          " bytes, but it has data of " + std::to_string(data_bytes) + " bytes");
  }
}

}  // namespace

std::string_view safetensors_name(DType dtype) {
  switch (dtype) {
    case DType::UInt8: return "U8";
    case DType::Int8: return "I8";
    case DType::Int16: return "I16";
    case DType::Int32: return "I32";
    case DType::Int64: return "I64";
    case DType::Float16: return "F16";
    case DType::BFloat16: return "BF16";
    case DType::Float32: return "F32";
    case DType::Float64: return "F64";
    case DType::Bool: return "BOOL";
    case DType::Complex64: return "C64";
    case DType::Complex128: return "C128";
  }
  return "";
}

std::optional<DType> dtype_from_safetensors(std::string_view name) {
  for (int i = 0; i < kDTypeCount; ++i) {
    if (safetensors_name(static_cast<DType>(i)) == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

std::string encode_safetensors_header(const std::vector<SafetensorsTensor>& tensors) {
  nlohmann::json header = nlohmann::json::object();
  nlohmann::json complex = nlohmann::json::array();
  std::int64_t offset = 0;
  for (auto [name, dtype, shape] : tensors) {
    if (!is_utf8(name)) {
      throw InvalidArgument("the name of tensor '" + printable(name) +
                            "' is not UTF-8. Rename it.");
    }
    const std::int64_t end = offset + whole_bytes(name, dtype, shape);
    if (dtype == DType::Complex128) {
      complex.push_back(name);
      dtype = DType::Float64;
      shape.push_back(2);
    }
    const bool is_new = header
                            .emplace(name, nlohmann::json{{"dtype", safetensors_name(dtype)},
                                                          {"shape", shape},
                                                          {"data_offsets", {offset, end}}})
                            .second;
    if (!is_new) throw InvalidArgument("two tensors are named '" + name + "'. Rename one.");
    offset = end;
  }
  if (header.contains(kMetadata)) {
    throw InvalidArgument("no tensor can be named '" + std::string(kMetadata) + "'. Rename it.");
  }
  if (!complex.empty()) header[kMetadata][kComplex128] = complex.dump();
  return with_length(header.dump());
}

SafetensorsHeader parse_safetensors_header(std::string_view json, std::int64_t data_bytes) {
  SafetensorsHeader header;
  std::vector<Range> ranges;
  std::string where = "its header";
  try {
    const nlohmann::json object = parse_json(json);
    if (!object.is_object()) throw InvalidArgument("it is not a JSON object");
    for (const auto& [name, entry] : object.items()) {
      where = name == kMetadata ? "its header" : "tensor '" + printable(name) + "'";
      if (name == kMetadata) {
        require_metadata(entry);
      } else {
        header.tensors[name] = to_place(name, entry, ranges);
      }
    }
    where = "its header";
    if (object.contains(kMetadata)) restore_complex128(object.at(kMetadata), header);
  } catch (const nlohmann::json::exception& error) {
    throw InvalidArgument(where + ": " + error.what());
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(where + ": " + error.what());
  }
  require_no_gaps(std::move(ranges), data_bytes);
  return header;
}

}  // namespace kolo::train

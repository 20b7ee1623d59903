#include "checkpoint/safetensors.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include <nlohmann/json.hpp>

#include "checkpoint/untrusted_text.hpp"
#include "kolo/error.hpp"

namespace kolo::checkpoints {
namespace {

constexpr std::string_view kMetadata = "__metadata__";
constexpr std::string_view kComplex128 = "kolo.complex128";  // the names of such tensors, in JSON
constexpr std::size_t kDataAlignment = 64;
constexpr auto kHeaderBegin = static_cast<std::int64_t>(kLengthBytes);
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;    // the format's limit
constexpr std::int64_t kMaxIndexFileBytes = 100'000'000;  // as many as a header may have

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
void restore_complex128(const nlohmann::json& metadata, SafetensorsEntries& tensors) {
  const auto names = metadata.find(kComplex128);
  if (names == metadata.end()) return;
  for (const nlohmann::json& name : parse_json(names->get<std::string>())) {
    const auto found = tensors.find(name.get<std::string>());
    if (found == tensors.end() || found->second.dtype != DType::Float64 ||
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

SafetensorsEntry to_place(const std::string& name, const nlohmann::json& entry,
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

/// The index must not lead out of its folder.
void require_file_name(const std::string& name) {
  if (!name.empty() && name != "." && name != ".." &&
      name.find_first_of(std::string_view("/\0", 2)) == std::string::npos) {
    return;
  }
  throw InvalidArgument("'" + printable(name) + "' is not the name of a file in its folder");
}

/// The file's name of each tensor.
std::map<std::string, std::string> read_weight_map(const std::filesystem::path& path) {
  const std::string text = FileReader(path).read_text(kMaxIndexFileBytes);
  std::map<std::string, std::string> files;
  try {
    const nlohmann::json index = parse_json(text);
    const auto weights = index.find("weight_map");
    if (weights == index.end() || !weights->is_object()) {
      throw InvalidArgument("it has no 'weight_map', which says where tensors are");
    }
    for (const auto& [tensor, name] : weights->items()) {
      if (!name.is_string()) {
        throw InvalidArgument("the file of tensor '" + printable(tensor) + "' is not a string");
      }
      require_file_name(files[tensor] = name.get<std::string>());
    }
  } catch (const nlohmann::json::exception& error) {
    throw InvalidArgument(error.what());
  }
  return files;
}

}  // namespace

std::optional<std::int64_t> elements_of(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(count, extent, &count)) return std::nullopt;
  }
  constexpr std::int64_t kLargestElement = 16;
  if (count > std::numeric_limits<std::int64_t>::max() / kLargestElement) return std::nullopt;
  return count;
}

std::string text_of(DType dtype, const std::vector<std::int64_t>& shape) {
  std::string text = std::string(name_of(dtype)) + " [";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  }
  return text + "]";
}

std::int64_t elements_in(std::span<const std::byte> room, DType dtype) {
  if (room.size() % size_of(dtype) == 0) {
    return static_cast<std::int64_t>(room.size() / size_of(dtype));
  }
  throw InvalidArgument("there is room for " + std::to_string(room.size()) +
                        " bytes, which are no whole number of " + std::string(name_of(dtype)));
}

void require_range(DType saved, const std::vector<std::int64_t>& shape, DType dtype,
                   std::int64_t begin, std::int64_t count) {
  if (saved != dtype) {
    throw InvalidArgument("is " + std::string(name_of(saved)) + ", but " +
                          std::string(name_of(dtype)) + " was asked for");
  }
  const std::int64_t elements = elements_of(shape).value();
  if (begin >= 0 && count >= 0 && begin <= elements && count <= elements - begin) return;
  throw InvalidArgument("has " + std::to_string(elements) + " elements, but " +
                        std::to_string(count) + " from " + std::to_string(begin) +
                        " on were asked for");
}

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

SafetensorsEntries parse_safetensors_header(std::string_view json, std::int64_t data_bytes) {
  SafetensorsEntries tensors;
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
        tensors[name] = to_place(name, entry, ranges);
      }
    }
    where = "its header";
    if (object.contains(kMetadata)) restore_complex128(object.at(kMetadata), tensors);
  } catch (const nlohmann::json::exception& error) {
    throw InvalidArgument(where + ": " + error.what());
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(where + ": " + error.what());
  }
  require_no_gaps(std::move(ranges), data_bytes);
  return tensors;
}

SafetensorsReader::SafetensorsReader(const std::filesystem::path& path) : file_(path) {
  try {
    const std::string header = read_header(file_);
    data_begin_ = kHeaderBegin + static_cast<std::int64_t>(header.size());
    tensors_ = parse_safetensors_header(header, file_.size() - data_begin_);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument("file '" + path.string() +
                          "' is not a safetensors file: " + error.what());
  }
}

void SafetensorsReader::read(const std::string& name, DType dtype, std::int64_t begin,
                             std::span<std::byte> target) const {
  const std::string what = "file '" + file_.path().string() + "': tensor '" + name + "' ";
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) throw InvalidArgument(what + "is not in it");
  const SafetensorsEntry& tensor = found->second;
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

SafetensorsFiles SafetensorsFiles::of_file(const std::filesystem::path& path) {
  SafetensorsFiles files;
  files.add(path);
  return files;
}

SafetensorsFiles SafetensorsFiles::of_index(const std::filesystem::path& path) {
  try {
    const std::map<std::string, std::string> weight_map = read_weight_map(path);
    std::map<std::string, std::size_t> places;
    SafetensorsFiles files;
    for (const auto& [tensor, name] : weight_map) {
      const auto [place, is_new] = places.emplace(name, files.files_.size());
      if (is_new) files.add(path.parent_path() / name);
    }
    for (const auto& [tensor, name] : weight_map) {
      const auto found = files.file_of_.find(tensor);
      if (found != files.file_of_.end() && found->second == places.at(name)) continue;
      throw InvalidArgument("tensor '" + printable(tensor) + "' is not in file '" +
                            printable(name) + "', where it should be");
    }
    return files;
  } catch (const InvalidArgument& error) {
    throw InvalidArgument("the index '" + path.string() + "' of a model: " + error.what());
  }
}

void SafetensorsFiles::add(const std::filesystem::path& path) {
  const SafetensorsReader& file = files_.emplace_back(path);
  for (const auto& [name, place] : file.tensors()) {
    const auto [first, is_new] = file_of_.emplace(name, files_.size() - 1);
    if (!is_new) {
      throw InvalidArgument("tensor '" + printable(name) + "' is in file '" +
                            files_[first->second].path().string() + "' and in file '" +
                            path.string() + "'");
    }
    tensors_.emplace(name, place);
  }
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     const std::vector<SafetensorsTensor>& tensors)
    : path_(path) {
  const std::string header = encode_safetensors_header(tensors);
  for (const SafetensorsTensor& tensor : tensors) {
    missing_bytes_ += bytes_of(tensor.dtype, elements_of(tensor.shape).value());
  }
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  const std::string name = path.filename().string();
  make_folder(folder);
  remove_leftovers(folder, name);
  draft_.emplace(folder, name);
  file_.emplace(draft_->path(), static_cast<std::int64_t>(header.size()) + missing_bytes_);
  file_->append(header.data(), header.size());
}

void SafetensorsWriter::append(const void* data, std::size_t bytes) {
  if (static_cast<std::int64_t>(bytes) > missing_bytes_) {
    throw InvalidArgument("file '" + path_.string() + "': " + std::to_string(bytes) +
                          " bytes were appended, its tensors have only " +
                          std::to_string(missing_bytes_) + " more");
  }
  file_->append(data, bytes);
  missing_bytes_ -= static_cast<std::int64_t>(bytes);
}

void SafetensorsWriter::close() {
  if (missing_bytes_ > 0) {
    throw InvalidArgument("file '" + path_.string() + "': its tensors have " +
                          std::to_string(missing_bytes_) + " bytes more than were appended");
  }
  file_->sync();
  if (draft_->publish(path_.filename())) return;
  throw BackendError("cannot write file '" + path_.string() +
                     "': a folder has this name. Choose another one.");
}

}  // namespace kolo::checkpoints

#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/files.hpp"
#include "checkpoint/publish.hpp"
#include "kolo/dtype.hpp"

/// The safetensors file format: eight bytes with the header's length, the header in JSON, then the
/// elements of all tensors without gaps.
namespace kolo::checkpoints {

/// The number of elements of this shape; nothing if an extent is negative or the number of bytes
/// would overflow.
std::optional<std::int64_t> elements_of(const std::vector<std::int64_t>& shape);

/// Bytes of `count` elements.
inline std::int64_t bytes_of(DType dtype, std::int64_t count) {
  return static_cast<std::int64_t>(size_of(dtype)) * count;
}

/// "float32 [3, 4]".
std::string text_of(DType dtype, const std::vector<std::int64_t>& shape);

// Checks before bytes of a file are copied to memory: the program's memory decides the range, and
// the file is compared with it.

/// The number of elements that fit into `room`. Throws InvalidArgument if its size is no multiple.
std::int64_t elements_in(std::span<const std::byte> room, DType dtype);
/// Throws InvalidArgument unless a tensor of type `saved` and this shape in a file has elements of
/// type `dtype` from `begin` to `begin + count`.
void require_range(DType saved, const std::vector<std::int64_t>& shape, DType dtype,
                   std::int64_t begin, std::int64_t count);

/// "F32" for DType::Float32. "C128", for complex128, is for indexes of checkpoints only.
std::string_view safetensors_name(DType dtype);
std::optional<DType> dtype_from_safetensors(std::string_view name);

/// The header's length comes first, little-endian.
inline constexpr std::size_t kLengthBytes = 8;

struct SafetensorsTensor {
  std::string name;
  DType dtype = DType::Float32;
  std::vector<std::int64_t> shape;

  bool operator==(const SafetensorsTensor&) const = default;
};

/// The start of a file with the data of these tensors, in this order; the data begins at a multiple
/// of 64 bytes. The format has no complex128: such a tensor becomes F64 with a last dimension of 2,
/// and the metadata "kolo.complex128" lists its name. Throws InvalidArgument if two names are
/// equal, a name is not UTF-8 or is "__metadata__", or a shape is impossible.
std::string encode_safetensors_header(const std::vector<SafetensorsTensor>& tensors);

/// A tensor in a file.
struct SafetensorsEntry {
  std::optional<DType> dtype;  ///< nothing if Kolo has none like it
  std::string dtype_name;
  std::vector<std::int64_t> shape;
  std::int64_t offset = 0;  ///< in bytes, from the start of the data
};
using SafetensorsEntries = std::map<std::string, SafetensorsEntry>;

/// Parses a header, without the length before it, of a file with `data_bytes` of data. Throws
/// InvalidArgument if it violates the format: other keys, types or lengths, tensors that overlap or
/// leave gaps.
SafetensorsEntries parse_safetensors_header(std::string_view json, std::int64_t data_bytes);

/// Reads a safetensors file that any program wrote. Throws InvalidArgument, naming file and tensor,
/// if the file is missing or violates the format; BackendError if the system cannot read it.
class SafetensorsReader {
 public:
  explicit SafetensorsReader(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  const SafetensorsEntries& tensors() const { return tensors_; }

  /// Fills `target` with a tensor's elements, which must be of `dtype`, from `begin` on.
  void read(const std::string& name, DType dtype, std::int64_t begin,
            std::span<std::byte> target) const;

 private:
  FileReader file_;
  SafetensorsEntries tensors_;
  std::int64_t data_begin_ = 0;
};

// What Hugging Face calls the files of a model in its folder.
inline constexpr std::string_view kModelName = "model.safetensors";
inline constexpr std::string_view kModelIndexName = "model.safetensors.index.json";

/// The safetensors files of a model: one, or those that an index lists. They stay open. Throws
/// InvalidArgument, naming files and tensor, and BackendError as SafetensorsReader.
class SafetensorsFiles {
 public:
  static SafetensorsFiles of_file(const std::filesystem::path& path);
  /// `path` is a model.safetensors.index.json: its "weight_map" says which file beside it has a
  /// tensor. Every file must be there and have these tensors, and no tensor may be in two. Tensors
  /// that it does not list count too, as for Hugging Face. Links are followed, since a cache of
  /// Hugging Face consists of them.
  static SafetensorsFiles of_index(const std::filesystem::path& path);

  const SafetensorsEntries& tensors() const { return tensors_; }

  /// Fills `target` with a tensor's elements, which must be of `dtype`, from `begin` on.
  void read(const std::string& name, DType dtype, std::int64_t begin,
            std::span<std::byte> target) const {
    files_[file_of_.at(name)].read(name, dtype, begin, target);
  }

 private:
  void add(const std::filesystem::path& path);

  std::vector<SafetensorsReader> files_;
  SafetensorsEntries tensors_;
  std::map<std::string, std::size_t> file_of_;
};

/// Streams whole tensors to one safetensors file, in little memory. Until `close` the file is a
/// Draft, and an older file of its name stays; without `close` it is removed. If two programs write
/// the same file concurrently, the later one removes the draft of the earlier one, whose `close`
/// then fails. Throws BackendError naming file and cause.
class SafetensorsWriter {
 public:
  /// Creates the folder if it is missing. Throws InvalidArgument like encode_safetensors_header.
  SafetensorsWriter(const std::filesystem::path& path,
                    const std::vector<SafetensorsTensor>& tensors);

  /// Appends elements: those of all tensors in order, in pieces of any size. Throws InvalidArgument
  /// for more than the tensors have.
  void append(const void* data, std::size_t bytes);
  /// Blocks until the file is on the disk under its name. Throws InvalidArgument if elements are
  /// missing.
  void close();

 private:
  std::filesystem::path path_;
  std::int64_t missing_bytes_ = 0;
  std::optional<Draft> draft_;
  std::optional<FileWriter> file_;
};

}  // namespace kolo::checkpoints

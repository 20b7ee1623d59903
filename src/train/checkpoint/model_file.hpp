#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "checkpoint/safetensors.hpp"
#include "kolo/dtype.hpp"

namespace kolo::train {

/// Files of a model that other programs have written.

/// What a file says of a tensor.
struct FileTensor {
  std::optional<DType> dtype;  // nothing if Kolo has none like it
  std::string dtype_name;
  std::vector<std::int64_t> shape;
};

/// Named tensors in a file, or in the files of a folder.
class ModelFile {
 public:
  virtual ~ModelFile() = default;
  const std::map<std::string, FileTensor>& tensors() const { return tensors_; }
  /// `count` elements, from `begin` on, of a tensor whose dtype Kolo has.
  virtual at::Tensor read(const std::string& name, std::int64_t begin,
                          std::int64_t count) const = 0;
  at::Tensor read(const std::string& name) const {
    const std::vector<std::int64_t>& shape = tensors_.at(name).shape;
    return read(name, 0, checkpoints::elements_of(shape).value()).view(shape);
  }

 protected:
  std::map<std::string, FileTensor> tensors_;
};

/// Opens a file by what it contains, whatever its name is: safetensors, the index of several such
/// files, or what torch::save writes of a module. Throws InvalidArgument, saying what to do, for
/// others.
std::unique_ptr<ModelFile> open_model_file(const std::filesystem::path& path);

/// The file in a folder of Hugging Face that has the tensors or says where they are, in the order
/// in which transformers looks; otherwise empty.
std::filesystem::path model_file_in(const std::filesystem::path& folder);

/// What this process sees under a path, in words that ranks can compare; opening it has the better
/// error text.
std::string kind_of(const std::filesystem::path& path);
/// Whether what is of this kind is such a file or folder; otherwise it may be a checkpoint.
bool is_of_a_model(const std::string& kind);

}  // namespace kolo::train

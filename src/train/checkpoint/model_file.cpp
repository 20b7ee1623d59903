#include "train/checkpoint/model_file.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <string_view>
#include <system_error>
#include <utility>

#include <c10/util/Exception.h>
#include <torch/serialize/input-archive.h>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/files.hpp"
#include "kolo/error.hpp"
#include "train/tensors/tensor_memory.hpp"

namespace kolo::train {
namespace {

constexpr const char* kFile = "a file";
constexpr const char* kModelFolder = "a folder of a model";

class SafetensorsModel final : public ModelFile {
 public:
  explicit SafetensorsModel(checkpoints::SafetensorsFiles files) : files_(std::move(files)) {
    for (const auto& [name, place] : files_.tensors()) {
      tensors_[name] = {place.dtype, place.dtype_name, place.shape};
    }
  }

  using ModelFile::read;
  at::Tensor read(const std::string& name, std::int64_t begin, std::int64_t count) const override {
    const DType dtype = *tensors_.at(name).dtype;
    at::Tensor values = at::empty({count}, at::TensorOptions(scalar_type_of(dtype)));
    files_.read(name, dtype, begin, {static_cast<std::byte*>(values.data_ptr()), values.nbytes()});
    return values;
  }

 private:
  checkpoints::SafetensorsFiles files_;
};

/// A module written by torch::save: every dot in a name is a nested archive.
class TorchFile final : public ModelFile {
 public:
  explicit TorchFile(const std::filesystem::path& path) {
    try {
      torch::serialize::InputArchive archive;
      archive.load_from(path.string(), at::kCPU);
      add(archive, "");
    } catch (const c10::Error& error) {
      throw InvalidArgument(
          path.string() +
          " is not what torch::save writes of a module in C++: " + error.what_without_backtrace() +
          ". If Python's torch.save wrote it, write it there with "
          "safetensors.torch.save_file(module.state_dict(), 'model.safetensors') and load that.");
    }
  }

  using ModelFile::read;
  at::Tensor read(const std::string& name, std::int64_t begin, std::int64_t count) const override {
    return values_.at(name).reshape(-1).narrow(0, begin, count);
  }

 private:
  void add(torch::serialize::InputArchive& archive, const std::string& prefix) {
    for (const std::string& key : archive.keys()) {
      torch::serialize::InputArchive inner;
      if (archive.try_read(key, inner)) {
        add(inner, prefix + key + ".");
        continue;
      }
      c10::IValue value;
      archive.read(key, value);
      if (!value.isTensor()) continue;
      const at::Tensor tensor = value.toTensor();
      tensors_[prefix + key] = {dtype_of(tensor.scalar_type()), c10::toString(tensor.scalar_type()),
                                tensor.sizes().vec()};
      values_[prefix + key] = tensor.detach();
    }
  }

  std::map<std::string, at::Tensor> values_;
};

}  // namespace

std::unique_ptr<ModelFile> open_model_file(const std::filesystem::path& path) {
  const checkpoints::FileReader file(path);
  std::array<unsigned char, checkpoints::kLengthBytes + 1> bytes{};
  file.read(0, std::min<std::int64_t>(file.size(), bytes.size()), bytes.data());
  const std::string_view start(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::string name = "file '" + path.string() + "'";
  if (start.starts_with("PK\x03\x04")) return std::make_unique<TorchFile>(path);
  if (start.starts_with('\x80')) {
    throw InvalidArgument(name +
                          " is a pickle of Python, which Kolo does not run. Load it there with "
                          "torch.load(), write it with safetensors.torch.save_file(tensors, "
                          "'model.safetensors') and load that.");
  }
  // Its length, which is little-endian, is far below 2^32.
  const bool is_safetensors = start.ends_with('{') && start.substr(4, 4) == std::string(4, '\0');
  if (!is_safetensors && start.starts_with('{')) {
    return std::make_unique<SafetensorsModel>(checkpoints::SafetensorsFiles::of_index(path));
  }
  std::string extension = path.extension().string();
  std::ranges::transform(extension, extension.begin(),
                         [](unsigned char letter) { return std::tolower(letter); });
  if (is_safetensors || extension == ".safetensors") {
    return std::make_unique<SafetensorsModel>(checkpoints::SafetensorsFiles::of_file(path));
  }
  throw InvalidArgument(name +
                        " is neither a safetensors file nor what torch::save writes of a module.");
}

std::filesystem::path model_file_in(const std::filesystem::path& folder) {
  std::error_code unreadable;
  for (const std::string_view name : {checkpoints::kModelName, checkpoints::kModelIndexName}) {
    if (std::filesystem::is_regular_file(folder / name, unreadable)) return folder / name;
  }
  return {};
}

std::string kind_of(const std::filesystem::path& path) {
  constexpr const char* kFolder = "a folder";
  std::error_code unreadable;
  if (std::filesystem::is_regular_file(path, unreadable)) return kFile;
  if (!std::filesystem::exists(path, unreadable)) return "missing";
  if (model_file_in(path).empty()) return kFolder;
  try {
    // A job that begins with a folder's model may save its checkpoints there.
    return checkpoints::has_checkpoint(path) ? kFolder : kModelFolder;
  } catch (const BackendError&) {
    return kFolder;
  }
}

bool is_of_a_model(const std::string& kind) { return kind == kFile || kind == kModelFolder; }

}  // namespace kolo::train

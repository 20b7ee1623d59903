#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/serialize/input-archive.h>

#include "kolo/error.hpp"
#include "torch/checkpoint/on_all_ranks.hpp"
#include "torch/checkpoint/safetensors_reader.hpp"
#include "torch/tensors/parameter_storage.hpp"
#include "torch/tensors/tensor_memory.hpp"
#include "torch/training/load_training.hpp"

namespace kolo::tensors {
namespace {

/// A file of tensors under the model's names.
class ModelFile {
 public:
  virtual ~ModelFile() = default;
  /// The tensor of that name; undefined if there is none.
  virtual at::Tensor read(const std::string& name, bool is_buffer) = 0;
};

class SafetensorsFile final : public ModelFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path) : reader_(path) {}

  at::Tensor read(const std::string& name, bool) override {
    const auto found = reader_.tensors().find(name);
    if (found == reader_.tensors().end()) return {};
    at::Tensor values =
        at::empty(found->second.shape, at::TensorOptions(scalar_type_of(found->second.dtype)));
    reader_.read(name, found->second.dtype, 0,
                 {static_cast<std::byte*>(values.data_ptr()), values.nbytes()});
    return values;
  }

 private:
  SafetensorsReader reader_;
};

/// A module written by torch::save: every dot in a name is a nested archive.
class TorchFile final : public ModelFile {
 public:
  explicit TorchFile(const std::filesystem::path& path) {
    try {
      archive_.load_from(path.string(), at::kCPU);
    } catch (const c10::Error& error) {
      throw InvalidArgument(path.string() + " is not what torch::save writes of a module: " +
                            error.what_without_backtrace());
    }
  }

  at::Tensor read(const std::string& name, bool is_buffer) override {
    torch::serialize::InputArchive* place = &archive_;
    std::vector<std::unique_ptr<torch::serialize::InputArchive>> inner;
    std::size_t begin = 0;
    for (std::size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', begin)) {
      inner.push_back(std::make_unique<torch::serialize::InputArchive>());
      if (!place->try_read(name.substr(begin, dot - begin), *inner.back())) return {};
      place = inner.back().get();
      begin = dot + 1;
    }
    at::Tensor values;
    place->try_read(name.substr(begin), values, is_buffer);
    return values;
  }

 private:
  torch::serialize::InputArchive archive_;
};

void copy_to(const at::Tensor& own, const at::Tensor& values, const TrainingView& view) {
  if (is_gathered_on_use(own)) {
    view.for_each_share([&](const TrainingView::Leaf& leaf) {
      if (!leaf.parameter.is_same(own)) return;
      leaf.elements.copy_(
          values.contiguous().view(-1).narrow(0, leaf.begin, leaf.elements.numel()));
    });
  } else if (!has_one_copy(own)) {
    at::Tensor(own).copy_(values);
  } else if (view.sharded.rank() == 0) {
    own.variable_data().copy_(values);  // keeps the version: this is not a write by the program
  }
}

/// Compares the view's parameters or buffers with the file's and, with `copies`, copies those that
/// fit. With `strict` throws for the first that does not.
void take(ModelFile& file, const TrainingView& view, bool is_buffer, bool strict, bool copies,
          const std::string& what) {
  const at::NoGradGuard no_grad;
  for (const auto& [key, own] : is_buffer ? view.buffers : view.parameters) {
    const at::Tensor values = file.read(key, is_buffer);
    const bool fits = values.defined() && values.sizes() == own.sizes() &&
                      values.scalar_type() == own.scalar_type();
    if (fits && copies) copy_to(own, values, view);
    if (fits || !strict) continue;
    throw InvalidArgument(what + " has " +
                          (values.defined() ? std::string(c10::toString(values.scalar_type())) +
                                                  " " + c10::str(values.sizes()) + " as"
                                            : std::string("no")) +
                          " '" + key + "', which is " + c10::toString(own.scalar_type()) + " " +
                          c10::str(own.sizes()) +
                          " in the program. Load with strict = false to leave it out.");
  }
}

}  // namespace

void load_model_file(const TrainingView& view, const std::filesystem::path& path, bool strict,
                     const std::string& name) {
  std::unique_ptr<ModelFile> file;
  const auto on_all = [&](const char* step, bool copies) {
    on_all_ranks({.name = name + step, .process_set = &view.set}, "loading " + path.string(), [&] {
      if (!file && path.extension() == ".safetensors") {
        file = std::make_unique<SafetensorsFile>(path);
      } else if (!file) {
        file = std::make_unique<TorchFile>(path);
      }
      take(*file, view, /*is_buffer=*/false, strict, copies, path.string());
      take(*file, view, /*is_buffer=*/true, strict, copies, path.string());
    });
  };
  on_all(".fits", false);
  on_all(".read", true);
}

}  // namespace kolo::tensors

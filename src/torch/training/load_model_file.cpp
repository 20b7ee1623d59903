// Files of a model that other programs have written.
#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <ATen/MemoryOverlap.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/serialize/input-archive.h>

#include "kolo/error.hpp"
#include "torch/checkpoint/file_reader.hpp"
#include "torch/checkpoint/on_all_ranks.hpp"
#include "torch/checkpoint/safetensors_reader.hpp"
#include "torch/checkpoint/tensor_slice.hpp"
#include "torch/tensors/parameter_storage.hpp"
#include "torch/tensors/tensor_memory.hpp"
#include "torch/training/load_training.hpp"
#include "torch/training/model_match.hpp"

namespace kolo::tensors {
namespace {

/// What a file says of a tensor.
struct FileTensor {
  std::optional<DType> dtype;  // nothing if Kolo has none like it
  std::string dtype_name;
  std::vector<std::int64_t> shape;
};

/// A file of named tensors.
class ModelFile {
 public:
  virtual ~ModelFile() = default;
  const std::map<std::string, FileTensor>& tensors() const { return tensors_; }
  /// The elements of a tensor whose dtype Kolo has.
  virtual at::Tensor read(const std::string& name) const = 0;

 protected:
  std::map<std::string, FileTensor> tensors_;
};

class SafetensorsFile final : public ModelFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path) : reader_(path) {
    for (const auto& [name, place] : reader_.tensors()) {
      tensors_[name] = {place.dtype, place.dtype_name, place.shape};
    }
  }

  at::Tensor read(const std::string& name) const override {
    const FileTensor& about = tensors_.at(name);
    at::Tensor values = at::empty(about.shape, at::TensorOptions(scalar_type_of(*about.dtype)));
    reader_.read(name, *about.dtype, 0,
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

  at::Tensor read(const std::string& name) const override { return values_.at(name); }

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

/// Opens a file by what it contains, whatever its name is.
std::unique_ptr<ModelFile> open_model_file(const std::filesystem::path& path) {
  const FileReader file(path);
  std::array<unsigned char, kLengthBytes + 1> bytes{};
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
  if (!is_safetensors && (start.starts_with('{') || start.starts_with('['))) {
    throw InvalidArgument(name +
                          " is JSON, not a file of tensors. If it lists the files of a model, as "
                          "model.safetensors.index.json does, merge them in Python with "
                          "safetensors.torch.load_file() and save_file(), and load the result.");
  }
  std::string extension = path.extension().string();
  std::ranges::transform(extension, extension.begin(),
                         [](unsigned char letter) { return std::tolower(letter); });
  if (is_safetensors || extension == ".safetensors") return std::make_unique<SafetensorsFile>(path);
  throw InvalidArgument(name +
                        " is neither a safetensors file nor what torch::save writes of a module.");
}

/// A tensor of the model with all its names: a tied one has several.
struct Target {
  at::Tensor own;
  std::vector<std::string> names;
};

std::vector<Target> targets_of(const TrainingView& view) {
  std::vector<Target> targets;
  std::unordered_map<const void*, std::size_t> places;
  std::unordered_map<std::string, std::size_t> by_name;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    const auto [place, is_new] = places.emplace(tensor.unsafeGetTensorImpl(), targets.size());
    if (is_new) targets.push_back({tensor, {}});
    targets[place->second].names.push_back(name);
    by_name[name] = place->second;
  };
  for (const auto& [name, tensor] : view.parameters) add(name, tensor);
  for (const auto& [name, tensor] : view.buffers) add(name, tensor);
  for (const auto& [name, first] : view.aliases) targets[by_name.at(first)].names.push_back(name);
  return targets;
}

/// What is taken from a file for the tensors of a model.
struct Plan {
  Loaded found;
  std::vector<std::pair<Target, std::string>> taken;  // and its name in the file
};

/// Whether save_full_state() writes it beside the model.
bool is_of_optimizer(std::string_view name, const std::set<std::string>& model) {
  const std::string master = master_key("");
  if (name.starts_with(master))
    name.remove_prefix(master.size());
  else if (name.starts_with(kStatePrefix)) {
    name.remove_prefix(kStatePrefix.size());
    name.remove_prefix(std::min(name.find('.'), name.size() - 1) + 1);
  }
  return model.contains(std::string(name));
}

void require_alike(const ModelFile& file, const std::string& first, const std::string& second,
                   const std::string& what) {
  const at::Tensor a = file.read(first).contiguous();
  const at::Tensor b = file.read(second).contiguous();
  if (std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0) return;
  throw InvalidArgument(what + " has different values for '" + first + "' and '" + second +
                        "', which are one tensor in the program. Load with strict = false to take "
                        "the first.");
}

Plan plan(const ModelFile& file, const TrainingView& view, bool strict, const std::string& what) {
  Plan plan;
  std::set<std::string> known;
  for (const Target& target : targets_of(view)) {
    std::string taken;
    for (const std::string& name : target.names) {
      known.insert(name);
      const auto found = file.tensors().find(name);
      if (found == file.tensors().end()) continue;
      const FileTensor& saved = found->second;
      const bool fits = saved.dtype && can_take(target.own, *saved.dtype, saved.shape) &&
                        (!strict || *saved.dtype == dtype_of(target.own));
      if (!fits && strict) {
        throw InvalidArgument(
            what + " has " + saved.dtype_name + " " + c10::str(saved.shape) + " as '" + name +
            "', which is " + c10::toString(target.own.scalar_type()) + " " +
            c10::str(target.own.sizes()) +
            " in the program. Load with strict = false to leave it out" +
            (saved.shape == target.own.sizes().vec() ? ", or to convert it." : "."));
      }
      if (fits && !taken.empty() && strict) require_alike(file, taken, name, what);
      if (fits && taken.empty()) taken = name;
    }
    const std::string& name = target.names.front();
    if (taken.empty()) {
      if (strict) {
        throw InvalidArgument(what + " has no '" + name + "', which is " +
                              c10::toString(target.own.scalar_type()) + " " +
                              c10::str(target.own.sizes()) +
                              " in the program. Load with strict = false to leave it out.");
      }
      plan.found.left_out.push_back(name);
      continue;
    }
    plan.found.loaded.push_back(name);
    if (file.tensors().at(taken).dtype != dtype_of(target.own)) {
      plan.found.converted.push_back(name);
    }
    plan.taken.emplace_back(target, taken);
  }
  for (const auto& [name, saved] : file.tensors()) {
    if (known.contains(name)) continue;
    plan.found.unused.push_back(name);
    if (!strict || is_of_optimizer(name, known)) continue;
    throw InvalidArgument(what + " has '" + name +
                          "', which the program does not have. Load with strict = false to leave "
                          "it out.");
  }
  require_some(plan.found, what);
  return plan;
}

void set_values(const at::Tensor& own, const at::Tensor& values, const TrainingView& view) {
  if (is_gathered_on_use(own)) {
    view.for_each_share([&](const TrainingView::Leaf& leaf) {
      if (!leaf.parameter.is_same(own)) return;
      leaf.elements.copy_(
          values.contiguous().view(-1).narrow(0, leaf.begin, leaf.elements.numel()));
    });
  } else if (!has_one_copy(own)) {
    copy_values(own, values);
  } else if (view.sharded.rank() == 0) {
    own.variable_data().copy_(values);  // keeps the version: this is not a write by the program
  }
}

/// For a comparison between ranks.
std::string text_of(const Plan& plan) {
  std::string text;
  for (const auto& [target, name] : plan.taken) text += name + '\0';
  return text;
}

}  // namespace

Loaded load_model_file(const TrainingView& view, const std::filesystem::path& path, bool strict,
                       const std::string& name) {
  std::unique_ptr<ModelFile> file;
  Plan planned;
  const std::string what = "file '" + path.string() + "'";
  const auto on_all = [&](const char* step, const auto& work) {
    return on_all_ranks({.name = name + step, .process_set = &view.set}, "loading " + what, work);
  };
  const std::vector<std::string> plans = on_all(".fits", [&] {
    file = open_model_file(path);
    planned = plan(*file, view, strict, what);
    for (const auto& [target, key] : planned.taken) {
      if (at::has_internal_overlap(target.own) != at::MemOverlap::Yes) continue;
      require_alike_where_shared(key, target.own, file->read(key));
    }
    return text_of(planned);
  });
  for (std::size_t i = 1; i < plans.size(); ++i) {
    if (plans[i] == plans[0]) continue;
    throw MismatchError("loading " + what + ": rank " + std::to_string(view.set.ranks()[i]) +
                        " has another file under this name than rank " +
                        std::to_string(view.set.ranks()[0]) + ". Give the same to every rank.");
  }
  on_all(".read", [&] {
    const at::NoGradGuard no_grad;
    for (const auto& [target, key] : planned.taken) {
      set_values(target.own, file->read(key), view);
    }
  });
  planned.found.path = path;
  return planned.found;
}

}  // namespace kolo::tensors

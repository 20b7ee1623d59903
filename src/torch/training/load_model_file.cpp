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
#include <system_error>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/MemoryOverlap.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/serialize/input-archive.h>

#include "kolo/error.hpp"
#include "torch/checkpoint/checkpoint.hpp"
#include "torch/checkpoint/file_reader.hpp"
#include "torch/checkpoint/on_all_ranks.hpp"
#include "torch/checkpoint/safetensors_files.hpp"
#include "torch/checkpoint/tensor_slice.hpp"
#include "torch/training/load_training.hpp"
#include "torch/training/model_match.hpp"
#include "train/tensors/parameter_storage.hpp"
#include "train/tensors/tensor_memory.hpp"

namespace kolo::train {
namespace {

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
    return read(name, 0, elements_of(shape).value()).view(shape);
  }

 protected:
  std::map<std::string, FileTensor> tensors_;
};

class SafetensorsModel final : public ModelFile {
 public:
  explicit SafetensorsModel(SafetensorsFiles files) : files_(std::move(files)) {
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
  SafetensorsFiles files_;
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
  if (!is_safetensors && start.starts_with('{')) {
    return std::make_unique<SafetensorsModel>(SafetensorsFiles::of_index(path));
  }
  std::string extension = path.extension().string();
  std::ranges::transform(extension, extension.begin(),
                         [](unsigned char letter) { return std::tolower(letter); });
  if (is_safetensors || extension == ".safetensors") {
    return std::make_unique<SafetensorsModel>(SafetensorsFiles::of_file(path));
  }
  throw InvalidArgument(name +
                        " is neither a safetensors file nor what torch::save writes of a module.");
}

constexpr const char* kFile = "a file";
constexpr const char* kModelFolder = "a folder of a model";

/// The file in a folder of Hugging Face that has the tensors or says where they are, in the order
/// in which transformers looks; otherwise empty.
std::filesystem::path model_file_in(const std::filesystem::path& folder) {
  std::error_code unreadable;
  for (const std::string_view name : {kModelName, kModelIndexName}) {
    if (std::filesystem::is_regular_file(folder / name, unreadable)) return folder / name;
  }
  return {};
}

/// A tensor of the model with all its names: a tied one has several.
struct Target {
  at::Tensor own;
  std::vector<std::string> names;
};

std::vector<Target> targets_of(const ModelView& model) {
  std::vector<Target> targets;
  std::unordered_map<const void*, std::size_t> places;
  std::unordered_map<std::string, std::size_t> by_name;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    const auto [place, is_new] = places.emplace(tensor.unsafeGetTensorImpl(), targets.size());
    if (is_new) targets.push_back({tensor, {}});
    targets[place->second].names.push_back(name);
    by_name[name] = place->second;
  };
  for (const auto& [name, tensor] : model.parameters) add(name, tensor);
  for (const auto& [name, tensor] : model.buffers) add(name, tensor);
  for (const auto& [name, first] : model.aliases) targets[by_name.at(first)].names.push_back(name);
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

Plan plan(const ModelFile& file, const ModelView& model, bool strict, const std::string& what) {
  Plan plan;
  std::set<std::string> known;
  for (const Target& target : targets_of(model)) {
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

/// Sets a tensor of the model to that of a file; reads what this rank has of it.
void set_values(const at::Tensor& own, const ModelFile& file, const std::string& name,
                const ModelView& model) {
  if (is_gathered_on_use(own)) {
    for (const ModelView::Share& share : model.shares) {
      if (!share.parameter.is_same(own)) continue;
      at::Tensor(share.elements).copy_(file.read(name, share.begin, share.elements.numel()));
    }
  } else if (!has_one_copy(own)) {
    copy_values(own, file.read(name));
  } else if (model.sets_shared_copies) {
    // Keeps the version: this is not a write by the program.
    own.variable_data().copy_(file.read(name));
  }
}

/// For a comparison between ranks.
std::string text_of(const Plan& plan) {
  std::string text;
  for (const auto& [target, name] : plan.taken) text += name + '\0';
  return text;
}

}  // namespace

std::string kind_of(const std::filesystem::path& path) {
  constexpr const char* kFolder = "a folder";
  std::error_code unreadable;
  if (std::filesystem::is_regular_file(path, unreadable)) return kFile;
  if (!std::filesystem::exists(path, unreadable)) return "missing";
  if (model_file_in(path).empty()) return kFolder;
  try {
    // A job that begins with a folder's model may save its checkpoints there.
    return has_checkpoint(path) ? kFolder : kModelFolder;
  } catch (const BackendError&) {
    return kFolder;
  }
}

bool is_of_a_model(const std::string& kind) { return kind == kFile || kind == kModelFolder; }

Loaded load_model_file(const ModelView& model, const std::filesystem::path& path, bool strict,
                       const Readers& readers) {
  std::unique_ptr<ModelFile> file;
  Plan planned;
  const std::filesystem::path inside = model_file_in(path);
  const std::filesystem::path chosen = inside.empty() ? path : inside;
  const std::string what = "file '" + chosen.string() + "'";
  const std::vector<std::string> plans = readers.run(".fits", "loading " + what, [&] {
    file = open_model_file(chosen);
    planned = plan(*file, model, strict, what);
    for (const auto& [target, key] : planned.taken) {
      if (at::has_internal_overlap(target.own) != at::MemOverlap::Yes) continue;
      require_alike_where_shared(key, target.own, file->read(key));
    }
    return chosen.filename().string() + '\0' + text_of(planned);
  });
  for (std::size_t i = 1; i < plans.size(); ++i) {
    if (plans[i] == plans[0]) continue;
    throw MismatchError("loading " + what + ": rank " + std::to_string(readers.world_rank(i)) +
                        " has another file under this name than rank " +
                        std::to_string(readers.world_rank(0)) + ". Give the same to every rank.");
  }
  readers.run(".read", "loading " + what, [&] {
    const at::NoGradGuard no_grad;
    for (const auto& [target, key] : planned.taken) set_values(target.own, *file, key, model);
  });
  planned.found.path = chosen;
  return planned.found;
}

}  // namespace kolo::train

#include "train/checkpoint/load_model.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "base/log.hpp"
#include "checkpoint/untrusted_text.hpp"
#include "kolo/error.hpp"
#include "train/checkpoint/model_file.hpp"
#include "train/gradients/grad_hooks.hpp"
#include "train/tensors/parameter_storage.hpp"

namespace kolo {

namespace train {
namespace {

/// "3 tensors: a, b, c".
std::string list_of(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 5;
  std::string text =
      std::to_string(names.size()) + (names.size() == 1 ? " tensor: " : " tensors: ");
  for (std::size_t i = 0; i < std::min(names.size(), kMost); ++i) {
    text += (i > 0 ? ", " : "") + names[i];
  }
  return text + (names.size() > kMost ? ", ..." : "");
}

/// Whether a loose load takes a tensor of this shape and dtype from a file: it may convert between
/// floating-point types, and between complex ones.
bool can_take(const at::Tensor& own, DType dtype, const std::vector<std::int64_t>& shape) {
  if (own.sizes() != at::IntArrayRef(shape)) return false;
  const at::ScalarType saved = scalar_type_of(dtype);
  return saved == own.scalar_type() ||
         (at::isFloatingType(saved) && at::isFloatingType(own.scalar_type())) ||
         (at::isComplexType(saved) && at::isComplexType(own.scalar_type()));
}

/// Throws InvalidArgument if nothing was found for any of the model's parameters and buffers.
void require_some(const Loaded& found, const std::string& what) {
  if (!found.loaded.empty() || found.left_out.empty()) return;
  throw InvalidArgument(what + " has no parameter or buffer of the model. The model has " +
                        list_of(found.left_out) + "; there, " +
                        (found.unused.empty() ? "nothing" : list_of(found.unused)) + ".");
}

// From a checkpoint.

void for_each_tensor(const ModelView& model,
                     const std::function<void(const std::string&, const at::Tensor&)>& visit) {
  for (const auto& [name, tensor] : model.parameters) visit(name, tensor);
  for (const auto& [name, tensor] : model.buffers) visit(name, tensor);
}

/// A tensor of the checkpoint that a tensor of the model is loaded from.
struct Source {
  std::string key;
  DType dtype;
};

/// Nothing if it has none. Throws InvalidArgument for one that does not fit, if `strict`.
std::optional<Source> find_source(const SavedTraining& saved, const std::string& name,
                                  const at::Tensor& tensor, bool strict) {
  const std::string key = model_key(saved.name_of(name));
  if (strict) {
    const TensorView own = extent_of(tensor, name);
    saved.require(key, own.dtype, own.shape);
    return Source{key, own.dtype};
  }
  const auto found = saved.index.tensors.find(key);
  if (found == saved.index.tensors.end()) return {};
  if (!can_take(tensor, found->second.dtype, found->second.shape)) return {};
  return Source{key, found->second.dtype};
}

at::Tensor read_values(const checkpoints::Checkpoint& checkpoint, const Read& read) {
  at::Tensor values = at::empty(read.target.sizes(), scalar_type_of(read.dtype));
  checkpoint.read(read.key, read.dtype, read.begin,
                  {static_cast<std::byte*>(values.data_ptr()), values.nbytes()});
  return values;
}

/// Loads the parameters and buffers of a checkpoint.
Loaded load_model(const ModelView& model, const std::filesystem::path& path, bool strict,
                  const checkpoints::Ranks& ranks) {
  const checkpoints::Checkpoint checkpoint(path, ranks);
  const std::string what = "loading the checkpoint " + checkpoint.path().string();
  Loaded loaded;
  std::vector<Read> reads;
  ranks.run(".verify", what, [&] {
    const SavedTraining saved{checkpoint.index(), checkpoint.path(),
                              parse_training_details(checkpoint.details())};
    loaded = match_model(model, saved, strict);
    reads = reads_of(model, saved, strict);
    for (const Read& read : reads) verify(checkpoint, read);
  });
  ranks.run(".read", what, [&] {
    for (const Read& read : reads) read_into(checkpoint, read);
  });
  return loaded;
}

// From a file.

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
    if (taken.empty() && strict) {
      throw InvalidArgument(what + " has no '" + name + "', which is " +
                            c10::toString(target.own.scalar_type()) + " " +
                            c10::str(target.own.sizes()) +
                            " in the program. Load with strict = false to leave it out.");
    }
    if (taken.empty() || !model.sets(name, target.own)) {
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

void log_partial(const Loaded& loaded) {
  if (loaded.left_out.empty() && loaded.converted.empty()) return;
  std::string text = "loading '" + loaded.path.string() + "' has set " +
                     std::to_string(loaded.loaded.size()) + " parameters and buffers of the model";
  if (!loaded.converted.empty()) text += "; converted " + list_of(loaded.converted);
  if (!loaded.left_out.empty()) text += "; left out " + list_of(loaded.left_out);
  if (!loaded.unused.empty()) text += "; did not use " + list_of(loaded.unused);
  KOLO_LOG(Warn) << checkpoints::printable(text);
}

std::vector<Read> reads_of(const ModelView& model, const SavedTraining& saved, bool strict) {
  std::vector<Read> reads;
  const auto add = [&](const std::string& name, const at::Tensor& tensor, std::int64_t begin,
                       const at::Tensor& target) {
    const auto source = find_source(saved, name, tensor, strict);
    if (source) reads.push_back({source->key, begin, target.detach(), source->dtype});
  };
  for_each_tensor(model, [&](const std::string& name, const at::Tensor& tensor) {
    if (!is_fully_sharded(tensor)) {
      add(name, tensor, 0, tensor);
    } else if (has_one_copy(tensor) && !model.sharded.contains(name) && model.sets_shared_copies) {
      add(name, tensor, 0, tensor.variable_data());  // another optimizer steps it
    }
  });
  for (const auto& [name, parameter, elements, begin] : model.shares) {
    add(name, parameter, begin, elements);
  }
  return reads;
}

void read_into(const checkpoints::Checkpoint& checkpoint, const Read& read) {
  const at::NoGradGuard no_grad;
  const at::Tensor& target = read.target;
  const bool is_plain = target.is_cpu() && target.is_contiguous() && !target.is_conj() &&
                        !target.is_neg() && dtype_of(target) == read.dtype;
  if (!is_plain) return copy_values(target, read_values(checkpoint, read));
  checkpoint.read(read.key, read.dtype, read.begin,
                  {static_cast<std::byte*>(target.data_ptr()), target.nbytes()});
}

void verify(const checkpoints::Checkpoint& checkpoint, const Read& read) {
  if (at::has_internal_overlap(read.target) == at::MemOverlap::Yes) {
    require_alike_where_shared(read.key, read.target, read_values(checkpoint, read));
  } else {
    checkpoint.verify(read.key, read.dtype, read.begin, read.target.numel());
  }
}

Loaded match_model(const ModelView& model, const SavedTraining& saved, bool strict) {
  Loaded found{.path = saved.path,
               .steps = saved.details.steps,
               .extras = saved.details.extras,
               .optimizer = saved.details.optimizer};
  std::unordered_set<std::string> known;
  for_each_tensor(model, [&](const std::string& name, const at::Tensor& tensor) {
    const auto source = find_source(saved, name, tensor, strict);
    const bool is_set = source && model.sets(name, tensor);
    (is_set ? found.loaded : found.left_out).push_back(name);
    if (!source) return;
    known.insert(source->key);
    if (!is_set) return;
    if (source->dtype != dtype_of(tensor)) found.converted.push_back(name);
  });
  const std::string prefix = model_key("");
  for (const auto& [key, tensor] : saved.index.tensors) {
    if (!key.starts_with(prefix) || known.contains(key)) continue;
    found.unused.push_back(key.substr(prefix.size()));
    if (!strict) continue;
    throw InvalidArgument(
        "the checkpoint " + saved.path.string() + " has '" + key +
        "', which the program does not have. Load with strict = false to leave it out.");
  }
  require_some(found, "the checkpoint " + saved.path.string());
  return found;
}

Loaded load_model_file(const ModelView& model, const std::filesystem::path& path, bool strict,
                       const checkpoints::Ranks& ranks) {
  std::unique_ptr<ModelFile> file;
  Plan planned;
  const std::filesystem::path inside = model_file_in(path);
  const std::filesystem::path chosen = inside.empty() ? path : inside;
  const std::string what = "file '" + chosen.string() + "'";
  const std::vector<std::string> plans = ranks.run(".fits", "loading " + what, [&] {
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
    throw MismatchError("loading " + what + ": rank " + std::to_string(ranks.world_rank(i)) +
                        " has another file under this name than rank " +
                        std::to_string(ranks.world_rank(0)) + ". Give the same to every rank.");
  }
  ranks.run(".read", "loading " + what, [&] {
    const at::NoGradGuard no_grad;
    for (const auto& [target, key] : planned.taken) set_values(target.own, *file, key, model);
  });
  planned.found.path = chosen;
  return planned.found;
}

}  // namespace train

Loaded load_parameters(torch::nn::Module& module, const std::filesystem::path& path,
                       const LoadParametersOptions& options) {
  using namespace train;
  ModelView model{
      .parameters = {}, .buffers = module.named_buffers().pairs(), .aliases = {}, .shares = {}};
  model.add_parameters(module.named_parameters().pairs());
  for (const auto& [name, tensor] : model.parameters) {
    if (!GradHooks::are_on(tensor) && !is_fully_sharded(tensor)) continue;
    throw InvalidArgument("load_parameters('" + path.string() +
                          "'): a DistributedOptimizer trains '" + name +
                          "'. Call its load() on all ranks, with optimizer_state = false.");
  }
  const checkpoints::Ranks alone = checkpoints::Ranks::this_process();
  const Loaded loaded = is_of_a_model(kind_of(path))
                            ? load_model_file(model, path, options.strict, alone)
                            : load_model(model, path, options.strict, alone);
  log_partial(loaded);
  return loaded;
}

}  // namespace kolo

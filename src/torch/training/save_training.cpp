#include "torch/training/save_training.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "kolo/error.hpp"
#include "torch/checkpoint/printable.hpp"
#include "torch/checkpoint/tensor_slice.hpp"
#include "torch/checkpoint/write_checkpoint.hpp"
#include "torch/training/leaf_states.hpp"
#include "torch/training/random_sources.hpp"
#include "train/tensors/parameter_storage.hpp"
#include "train/tensors/tensor_collectives.hpp"
#include "train/tensors/tensor_memory.hpp"

namespace kolo::train {
namespace {

/// The slices of tensors that this rank writes. Tensors that every rank has are split into equal
/// shares.
class Slices {
 public:
  explicit Slices(const ProcessSet& set) : set_(set) {}

  /// Adds elements that only this rank has, from element `begin` of a tensor of `shape` on.
  void add(std::string name, const at::Tensor& elements, std::vector<std::int64_t> shape,
           std::int64_t begin) {
    const at::Tensor kept = keep(name, elements);
    add_slice(std::move(name), kept, std::move(shape), begin, 0, elements.numel());
  }
  void add(std::string name, const at::Tensor& tensor) {
    add(std::move(name), tensor, tensor.sizes().vec(), 0);
  }
  /// Adds a tensor that every rank has. All ranks add the same tensors in the same order.
  void share(std::string name, const at::Tensor& tensor) {
    require_supported(name, tensor);
    shared_.push_back({std::move(name), tensor});
    shared_bytes_ += tensor.nbytes();
  }

  std::vector<TensorSlice> finish() {
    const auto size = static_cast<std::size_t>(set_.size());
    const auto rank = static_cast<std::size_t>(set_.rank());
    std::size_t offset = 0;
    for (const auto& [name, tensor] : shared_) {
      const auto count = static_cast<std::size_t>(tensor.numel());
      const auto element = static_cast<std::size_t>(tensor.element_size());
      const auto first_from = [&](std::size_t place) {
        const std::size_t bytes = place > offset ? place - offset : 0;
        return std::min((bytes + element - 1) / element, count);
      };
      const std::size_t begin = first_from(shared_bytes_ * rank / size);
      const std::size_t end = first_from(shared_bytes_ * (rank + 1) / size);
      const auto first = static_cast<std::int64_t>(begin);
      const auto own = static_cast<std::int64_t>(end - begin);
      // Another optimizer gathers it: all ranks must take part, even those that write none of it.
      const bool is_gathered = is_gathered_on_use(tensor);
      const at::Tensor kept = keep(
          name, is_gathered ? tensor.detach().reshape(-1).narrow(0, first, own).clone() : tensor);
      if (own > 0 || (count == 0 && rank == 0)) {
        add_slice(name, kept, tensor.sizes().vec(), first, is_gathered ? 0 : first, own);
      }
      offset += tensor.nbytes();
    }
    return std::move(slices_);
  }

 private:
  static void require_supported(const std::string& name, const at::Tensor& tensor) {
    if (std::string problem = problem_with(tensor); !problem.empty()) {
      throw InvalidArgument("'" + name + "': " + problem);
    }
  }

  at::Tensor keep(const std::string& name, const at::Tensor& tensor) {
    require_supported(name, tensor);
    return kept_.emplace_back(contiguous(tensor));
  }

  /// Adds `count` elements of `kept`, from `skipped` on.
  void add_slice(std::string name, const at::Tensor& kept, std::vector<std::int64_t> shape,
                 std::int64_t begin, std::int64_t skipped, std::int64_t count) {
    const TensorView view = view_of(kept, name);
    const std::size_t offset = static_cast<std::size_t>(skipped) * size_of(view.dtype);
    slices_.push_back({std::move(name), view.dtype, std::move(shape), begin, count});
    TensorSlice& slice = slices_.back();
    if (kept.is_cpu()) {
      slice.data = static_cast<const std::byte*>(view.data) + offset;
    } else {
      slice.copy_to = [kept, offset](std::size_t more, std::span<std::byte> place) {
        copy_bytes(kept, offset + more, place);
      };
    }
  }

  const ProcessSet& set_;
  std::vector<TensorSlice> slices_;
  std::vector<std::pair<std::string, at::Tensor>> shared_;
  std::size_t shared_bytes_ = 0;
  std::vector<at::Tensor> kept_;
};

void add_parameters(const TrainingView& view, Slices& slices) {
  for (const auto& [name, tensor] : view.model.parameters) {
    // No rank has a shard of a parameter without elements.
    if (!view.gathers(name, tensor) || tensor.numel() == 0) slices.share(model_key(name), tensor);
  }
  for (const ModelView::Share& share : view.model.shares) {
    if (!view.gathers(share.name, share.parameter) || !view.is_first_replica) continue;
    slices.add(model_key(share.name), share.elements, share.parameter.sizes().vec(), share.begin);
  }
}

void add_masters(const TrainingView& view, Slices& slices) {
  for (const TrainingView::Leaf& leaf : view.leaves) {
    if (!leaf.has_master() || !view.is_first_replica) continue;
    slices.add(master_key(leaf.name), leaf.values.detach(), leaf.parameter.sizes().vec(),
               leaf.begin);
  }
}

void add_state(const TrainingView& view, const LeafStates& states, Slices& slices) {
  for (std::size_t i = 0; i < view.leaves.size(); ++i) {
    const TrainingView::Leaf& leaf = view.leaves[i];
    for (const StateField& field : states.fields(i)) {
      if (!field.value.isTensor()) continue;
      const at::Tensor tensor = field.value.toTensor();
      const std::string key = state_key(field.name, leaf.name);
      const LeafStates::Tensor& all = states.tensors().at({leaf.name, field.name});
      if (leaf.is_whole() && states.is_everywhere(all)) {
        slices.share(key, tensor);
      } else if (leaf.is_whole()) {
        if (states.is_last_with(all)) slices.add(key, tensor);
      } else if (!view.is_first_replica) {
        continue;
      } else if (all.is_elementwise) {
        slices.add(key, tensor, leaf.parameter.sizes().vec(), leaf.begin);
      } else if (leaf.begin == 0) {
        slices.add(key, tensor);
      }
    }
  }
}

void add_residuals(const TrainingView& view, Slices& slices) {
  for (const TrainingView::Residual& residual : view.residuals.own) {
    slices.add(residual_key(view.residuals.copy, residual.name), residual.elements,
               residual.parameter.sizes().vec(), residual.begin);
  }
}

void add_hook_state(const TrainingView& view, Slices& slices) {
  if (!view.hook.state || view.set.rank() > 0) return;
  for (const auto& [name, tensor] : view.hook.state()) {
    slices.add(std::string(kHookPrefix) + name, tensor);
  }
}

}  // namespace

void require_storable_names(const TrainingView& view) {
  const auto require = [](const char* kind, const std::string& name) {
    if (is_utf8(name)) return;
    throw InvalidArgument("the name of " + std::string(kind) + " '" + printable(name) +
                          "' is not UTF-8, which files of tensors need. Rename it.");
  };
  for (const auto& [name, tensor] : view.model.parameters) require("parameter", name);
  for (const auto& [name, first] : view.model.aliases) require("parameter", name);
  for (const auto& [name, tensor] : view.model.buffers) require("buffer", name);
}

void save_training(const TrainingView& view, const std::filesystem::path& folder,
                   nlohmann::json details, int keep_last, const RequireLoadable& require_loadable,
                   const std::string& name) {
  Slices slices(view.set);
  const LeafStates states(view, {.name = name + ".state", .process_set = &view.set},
                          "DistributedOptimizer::save", [&] {
                            require_storable_names(view);
                            add_parameters(view, slices);
                            if (view.set.rank() == 0) {
                              for (const auto& [key, tensor] : view.model.buffers) {
                                slices.add(model_key(key), tensor);
                              }
                            }
                            add_masters(view, slices);
                            add_residuals(view, slices);
                            add_hook_state(view, slices);
                            for (const RandomSource& source : random_sources(view)) {
                              slices.add(source.key, source.state());
                            }
                          });
  add_state(view, states, slices);
  details["state"] = states.describe();
  details["aliases"] = view.model.aliases;
  write_checkpoint(folder, slices.finish(), details, keep_last,
                   {.name = name, .process_set = &view.set}, require_loadable);
}

}  // namespace kolo::train

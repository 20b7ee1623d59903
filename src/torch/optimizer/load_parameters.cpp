#include <filesystem>
#include <string>

#include <torch/nn/module.h>

#include "kolo/error.hpp"
#include "kolo/torch/checkpoint.hpp"
#include "torch/checkpoint/on_all_ranks.hpp"
#include "torch/reduction/gradient_reducer.hpp"
#include "torch/tensors/parameter_storage.hpp"
#include "torch/training/load_training.hpp"
#include "torch/training/model_match.hpp"
#include "torch/training/model_view.hpp"

namespace kolo {

Loaded load_parameters(torch::nn::Module& module, const std::filesystem::path& path,
                       const LoadParametersOptions& options) {
  const std::string what = "load_parameters('" + path.string() + "')";
  tensors::ModelView model{
      .parameters = {}, .buffers = module.named_buffers().pairs(), .aliases = {}, .shares = {}};
  model.add_parameters(module.named_parameters().pairs());
  for (const auto& [name, tensor] : model.parameters) {
    if (!tensors::GradientReducer::reduces(tensor) && !tensors::is_fully_sharded(tensor)) continue;
    throw InvalidArgument(what + ": a DistributedOptimizer trains '" + name +
                          "'. Call its load() on all ranks, with optimizer_state = false.");
  }
  const tensors::Readers alone = tensors::Readers::this_process();
  const std::string kind = tensors::kind_of(path);
  const Loaded loaded = tensors::is_of_a_model(kind)
                            ? tensors::load_model_file(model, path, options.strict, alone)
                            : tensors::load_model(model, path, options.strict, alone);
  tensors::log_partial(loaded);
  return loaded;
}

}  // namespace kolo

#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include <torch/nn/module.h>

#pragma GCC visibility push(default)
namespace kolo {
namespace train {
/// Runs `construct`, which returns the new module. See kolo::deferred.
void construct_deferred(const std::function<const torch::nn::Module&()>& construct);
}  // namespace train

/// Constructs a model whose parameters exist only on the first rank of each node, until an
/// optimizer over them is wrapped.
///
///     auto model = kolo::deferred<Net>(config);
///     torch::optim::AdamW adamw(model->parameters(), 1e-3);
///     kolo::DistributedOptimizer optimizer(adamw, *model, {.shard = kolo::Shard::Full});
///
/// All ranks run the constructor, so that they draw the same random numbers. Meanwhile all ranks
/// except the first of each node allocate large tensors at a 32nd of their size; afterwards their
/// parameters have no memory, and using or moving one before it is wrapped throws, naming it.
/// Wrapping gives the parameters the first rank's values: with Shard::Full in the node's copy, in
/// other modes in each rank's memory. Everything else that the constructor creates, such as
/// buffers, gets the values of rank 0 on all ranks.
///
/// The constructor must do the same on all ranks and must not branch on the values of tensors. To
/// convert the model to another dtype, do so in the constructor. Views of parameters that the model
/// keeps stay without elements, but several modules may share a parameter. Tensors on a GPU are
/// created as usual.
///
/// @tparam Net a module class, or a torch::nn::ModuleHolder
/// @param args of the constructor
/// @return a shared_ptr to the module, or the holder
/// @throws InvalidArgument on all ranks if the constructor throws on another rank, or draws a
///   different number of random numbers than on the first rank; the rank where it throws gets that
///   exception
/// @throws MismatchError on all ranks if ranks create different tensors
template <class Net, class... Args>
auto deferred(Args&&... args) {
  if constexpr (std::is_base_of_v<torch::nn::Module, Net>) {
    std::shared_ptr<Net> made;
    train::construct_deferred([&]() -> const torch::nn::Module& {
      made = std::make_shared<Net>(std::forward<Args>(args)...);
      return *made;
    });
    return made;
  } else {
    std::optional<Net> made;  // holders need not have a default constructor
    train::construct_deferred([&]() -> const torch::nn::Module& {
      made.emplace(std::forward<Args>(args)...);
      return *made->ptr();
    });
    return *std::move(made);
  }
}

/// Whether kolo::deferred constructed the model and no optimizer over it has been wrapped: its
/// parameters do not have their values yet. The same on all ranks. Not collective.
bool is_deferred(const torch::nn::Module& model);

}  // namespace kolo
#pragma GCC visibility pop

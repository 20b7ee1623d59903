#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include <torch/nn/module.h>

#pragma GCC visibility push(default)
namespace kolo {
namespace tensors {
/// Runs `construct`, which returns the module it has made. See kolo::deferred.
void construct_deferred(const std::function<const torch::nn::Module&()>& construct);
}  // namespace tensors

/// Constructs a model whose parameters only the first rank of each node keeps, until an optimizer
/// of it is wrapped.
///
///     auto model = kolo::deferred<Net>(config);
///     torch::optim::AdamW adamw(model->parameters(), 1e-3);
///     kolo::DistributedOptimizer optimizer(adamw, *model, {.shard = kolo::Shard::Full});
///
/// All ranks run the constructor, so that random numbers are the same afterwards, but on all ranks
/// except the first of a node large tensors have a 32nd of their memory meanwhile, and then
/// parameters have none: to use or move them before they are wrapped throws, naming the parameter.
/// Wrapping gives them the first rank's values: with Shard::Full in the copy of the node, with
/// other modes in memory of each rank. What else the constructor has made, such as buffers, has the
/// values of rank 0 on all ranks.
///
/// The constructor must do the same on all ranks, and must not decide by the values of tensors. To
/// convert the model to another dtype, let the constructor do it. Views of parameters that it keeps
/// stay without elements; parameters themselves may be in several modules. Tensors that it makes on
/// a GPU are as usual. Collective over the world of Runtime::current(), and blocking.
///
/// @tparam Net a class of modules, or a torch::nn::ModuleHolder
/// @param args of the constructor
/// @return a shared_ptr of the module, or the holder
/// @throws InvalidArgument on all ranks if the constructor throws on another, or draws another
///   number of random numbers than on the first rank; on that rank its own exception
/// @throws MismatchError on all ranks if it makes other tensors on some
template <class Net, class... Args>
auto deferred(Args&&... args) {
  if constexpr (std::is_base_of_v<torch::nn::Module, Net>) {
    std::shared_ptr<Net> made;
    tensors::construct_deferred([&]() -> const torch::nn::Module& {
      made = std::make_shared<Net>(std::forward<Args>(args)...);
      return *made;
    });
    return made;
  } else {
    std::optional<Net> made;  // holders need not have a default constructor
    tensors::construct_deferred([&]() -> const torch::nn::Module& {
      made.emplace(std::forward<Args>(args)...);
      return *made->ptr();
    });
    return *std::move(made);
  }
}

}  // namespace kolo
#pragma GCC visibility pop

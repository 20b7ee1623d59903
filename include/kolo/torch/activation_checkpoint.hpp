#pragma once

#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#pragma GCC visibility push(default)
namespace kolo {
namespace train {

using TensorFunction =
    std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

std::vector<at::Tensor> checkpoint(TensorFunction function, const std::vector<at::Tensor>& inputs);

/// The result of a callable, or of a module's forward().
template <class Function, class Inputs>
auto result_of(Function& function, const Inputs& inputs) {
  if constexpr (requires { function->forward(inputs); }) {
    return function->forward(inputs);
  } else {
    return function(inputs);
  }
}

}  // namespace train

/// Calls a function and keeps only its inputs and results; backward() calls it again to recompute
/// the activations in between. This saves memory at the price of a second forward pass. Like
/// torch.utils.checkpoint.
///
///   for (auto& block : blocks) x = kolo::checkpoint(block, x);
///   x = kolo::checkpoint([&](const std::vector<at::Tensor>& in) { return attend(in[0], in[1]); },
///                        {x, mask});
///
/// Gradients flow to the inputs and to all parameters and other tensors that the function uses. The
/// gradients of a parameter add up before they arrive, even if it is also used outside, so its
/// hooks run once per backward(). Both calls use the same random numbers, on the CPU and on the
/// inputs' GPUs, and the same autocast dtypes. Checkpoints nest. Not collective: ranks may differ
/// in what they checkpoint. When gradients are disabled, it just calls the function.
///
/// Tensors and modules that the function refers to must stay alive and unchanged until backward().
/// Both calls must do the same; side effects happen twice: BatchNorm updates its running statistics
/// twice. During the first call, too, all activations of the function are in memory, so checkpoint
/// parts of a model, not the whole.
/// @param function a module of torch::nn or any callable that takes one tensor or a vector of
///   tensors and returns one or a vector; it is copied
/// @param inputs one tensor, or a vector of tensors, some of which may be undefined
/// @return what the function returns
/// @throws InvalidArgument in backward() if the two calls used or returned different tensors, or
///   for gradients of gradients (create_graph)
template <class Function, class Inputs = std::vector<at::Tensor>>
auto checkpoint(Function function, const Inputs& inputs) {
  using Tensors = std::vector<at::Tensor>;
  using Result = decltype(train::result_of(function, inputs));
  constexpr bool kTakesOne = std::is_same_v<Inputs, at::Tensor>;
  constexpr bool kReturnsOne = std::is_same_v<Result, at::Tensor>;
  static_assert((kTakesOne || std::is_same_v<Inputs, Tensors>) &&
                    (kReturnsOne || std::is_same_v<Result, Tensors>),
                "inputs and results are each an at::Tensor or a std::vector of them");
  auto call = [function = std::move(function)](const Tensors& given) mutable -> Tensors {
    const auto results = [&] {
      if constexpr (kTakesOne) {
        return train::result_of(function, given.front());
      } else {
        return train::result_of(function, given);
      }
    };
    return Tensors{results()};
  };
  Tensors results = train::checkpoint(std::move(call), Tensors{inputs});
  if constexpr (kReturnsOne) {
    return std::move(results.front());
  } else {
    return results;
  }
}

}  // namespace kolo
#pragma GCC visibility pop

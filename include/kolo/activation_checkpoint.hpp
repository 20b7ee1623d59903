#pragma once

#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#pragma GCC visibility push(default)
namespace kolo {
namespace tensors {

using TensorFunction =
    std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

std::vector<at::Tensor> checkpoint(TensorFunction function, const std::vector<at::Tensor>& inputs);

/// Of a module what forward() returns.
template <class Function, class Inputs>
auto result_of(Function& function, const Inputs& inputs) {
  if constexpr (requires { function->forward(inputs); }) {
    return function->forward(inputs);
  } else {
    return function(inputs);
  }
}

}  // namespace tensors

/// Calls a function and keeps only its inputs and results; backward() calls it again for the
/// activations in between. That trades a second forward pass for memory, like
/// torch.utils.checkpoint.
///
///   for (auto& block : blocks) x = kolo::checkpoint(block, x);
///   x = kolo::checkpoint([&](const std::vector<at::Tensor>& in) { return attend(in[0], in[1]); },
///                        {x, mask});
///
/// Gradients reach the inputs and all parameters and other tensors that the function uses. Those of
/// a parameter add up before they arrive, also when it is used elsewhere too, so its hooks run once
/// per backward(). Both calls have the same random numbers, of the CPU and the inputs' GPUs, and
/// the same autocast dtypes. Checkpoints nest. Each rank may use it as it likes. Where no gradients
/// are recorded, it just calls the function.
///
/// Tensors and modules that the function refers to must live until backward(), unchanged. The
/// function must do the same in both calls; what else it does happens twice: BatchNorm updates its
/// running statistics twice. In the first call too, its activations live until it returns, so
/// checkpoint parts of a model, not all of it.
/// @param function takes one tensor or a vector of tensors and returns one or a vector of them; it
///   is copied: a module of torch::nn, or any callable
/// @param inputs one tensor, or a vector, in which some may be undefined
/// @return what the function returns
/// @throws InvalidArgument in backward(), if the second call used other tensors or returned others
///   than the first, or for gradients of gradients (create_graph)
template <class Function, class Inputs = std::vector<at::Tensor>>
auto checkpoint(Function function, const Inputs& inputs) {
  using Tensors = std::vector<at::Tensor>;
  using Result = decltype(tensors::result_of(function, inputs));
  constexpr bool kTakesOne = std::is_same_v<Inputs, at::Tensor>;
  constexpr bool kReturnsOne = std::is_same_v<Result, at::Tensor>;
  static_assert((kTakesOne || std::is_same_v<Inputs, Tensors>) &&
                    (kReturnsOne || std::is_same_v<Result, Tensors>),
                "inputs and results are each an at::Tensor or a std::vector of them");
  auto call = [function = std::move(function)](const Tensors& given) mutable -> Tensors {
    const auto results = [&] {
      if constexpr (kTakesOne) {
        return tensors::result_of(function, given.front());
      } else {
        return tensors::result_of(function, given);
      }
    };
    return Tensors{results()};
  };
  Tensors results = tensors::checkpoint(std::move(call), Tensors{inputs});
  if constexpr (kReturnsOne) {
    return std::move(results.front());
  } else {
    return results;
  }
}

}  // namespace kolo
#pragma GCC visibility pop

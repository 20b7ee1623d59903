#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

namespace kolo::train {

/// Owns a node of autograd's graph: a std::shared_ptr, or in newer versions of LibTorch a
/// c10::intrusive_ptr.
using NodeOwner = decltype(torch::autograd::Edge::function);

/// Creates a node. Shared nodes have a deleter, unlike with make_shared, since long graphs must not
/// be deleted recursively.
template <class T, class... Arguments>
auto make_node(Arguments&&... arguments) {
  if constexpr (std::is_same_v<NodeOwner, std::shared_ptr<torch::autograd::Node>>) {
    return std::shared_ptr<T>(new T(std::forward<Arguments>(arguments)...),
                              [](T* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<T>(std::forward<Arguments>(arguments)...);
  }
}

}  // namespace kolo::train

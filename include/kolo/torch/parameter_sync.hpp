#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kolo/process_set.hpp"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

#pragma GCC visibility push(default)
/// Gives all ranks the same initial values. All functions are collective over the set and block.
///
/// @param root the world rank whose values all ranks get; the same on all
/// @param process_set null: the world of Runtime::current()
/// @throws MismatchError on all ranks if tensors differ in shape or dtype; all other errors of
///   kolo/collectives.hpp
namespace kolo {

/// Copies the root's parameters and buffers to all ranks, in place.
void broadcast_parameters(const torch::nn::Module& module, int root,
                          ProcessSet* process_set = nullptr);
/// Copies the root's tensors, matched by name, to all ranks; the names must be equal on all. For
/// buffers alone, which drift apart while ranks train: model->named_buffers().pairs().
void broadcast_parameters(const std::vector<std::pair<std::string, at::Tensor>>& named, int root,
                          ProcessSet* process_set = nullptr);
/// Copies the root's tensors, matched by order, to all ranks.
void broadcast_parameters(const std::vector<at::Tensor>& tensors, int root,
                          ProcessSet* process_set = nullptr);

/// Copies the root's optimizer state to all ranks, with its dtypes: state tensors, step counters
/// and options. Creates state that a rank does not have yet; does not touch parameters. Temporarily
/// holds a serialized copy of the state on every rank.
/// @param optimizer of the same class on all ranks, over parameters of the same shapes in the same
///   groups
/// @throws InvalidArgument on all ranks if LibTorch cannot serialize the root's state (LBFGS), if a
///   rank's optimizer cannot load it, or if it is sharded: use DistributedOptimizer::save and load
///   then
void broadcast_optimizer_state(torch::optim::Optimizer& optimizer, int root,
                               ProcessSet* process_set = nullptr);

}  // namespace kolo
#pragma GCC visibility pop

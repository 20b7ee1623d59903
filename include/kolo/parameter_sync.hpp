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

/// Makes all ranks start alike. All functions are collective over the set (by default the world of
/// Runtime::current()) and block; `root` is a world rank, the same on all. Errors are those of
/// kolo/collectives.hpp: ranks whose tensors differ in shape or type get MismatchError.
namespace kolo {

/// Copies the root's parameters and buffers to all ranks, in place.
void broadcast_parameters(const torch::nn::Module& module, int root,
                          ProcessSet* process_set = nullptr);
/// The same for tensors under these names, which must be equal on all ranks …
void broadcast_parameters(const std::vector<std::pair<std::string, at::Tensor>>& named, int root,
                          ProcessSet* process_set = nullptr);
/// … or in this order.
void broadcast_parameters(const std::vector<at::Tensor>& tensors, int root,
                          ProcessSet* process_set = nullptr);

/// Copies the root's optimizer state to all ranks: state tensors, step counters and options, with
/// their types. State that a rank does not have yet is made; parameters are not touched. The
/// optimizers are of one type, over parameters of the same shapes in the same groups. Every rank
/// holds the serialised state once more for the time of the call. Throws InvalidArgument on all
/// ranks where LibTorch cannot write the root's state (LBFGS), a rank cannot take it, or the ranks
/// have divided it: a sharded optimizer's is for DistributedOptimizer::save and load.
void broadcast_optimizer_state(torch::optim::Optimizer& optimizer, int root,
                               ProcessSet* process_set = nullptr);

}  // namespace kolo

#include "kolo/torch/parameter_sync.hpp"

#include <exception>
#include <sstream>
#include <string>
#include <unordered_set>
#include <utility>

#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/serialize.h>
#include <torch/serialize.h>

#include "kolo/agreement.hpp"
#include "kolo/objects.hpp"
#include "kolo/runtime.hpp"
#include "kolo/torch/tensor_collectives.hpp"
#include "runtime/api/collectives.hpp"
#include "train/tensors/ordinary_tensors.hpp"
#include "train/tensors/parameter_storage.hpp"

namespace kolo {
namespace {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Runs `part`, and returns its error as text, for the other ranks.
template <class Part>
std::string problem_with(const std::string& what, Part&& part) {
  try {
    part();
    return {};
  } catch (const c10::Error& error) {
    return "the optimizer's state " + what + ": " + error.what_without_backtrace();
  } catch (const std::exception& error) {
    return "the optimizer's state " + what + ": " + error.what();
  }
}

/// The device of the parameters; its index may differ from the root's.
at::Device device_of(const torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    if (!group.params().empty()) return group.params().front().device();
  }
  return at::kCPU;
}

}  // namespace

void broadcast_parameters(const NamedTensors& tensors, int root, ProcessSet* process_set) {
  std::vector<TensorHandle> handles;
  std::unordered_set<const void*> seen;
  for (const auto& [name, tensor] : tensors) {
    // Tied parameters are one tensor under several names.
    if (!tensor.defined() || !seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
    if (train::is_gathered_on_use(tensor)) continue;  // all ranks have one value
    // All ranks of a node write the root's values to their shared copy. A DistributedOptimizer must
    // not refuse these writes, so they use variable_data(), which has a separate version.
    at::Tensor target = train::has_one_copy(tensor) ? tensor.variable_data() : tensor;
    handles.push_back(broadcast_async_(
        target, root, {.name = "broadcast_parameters." + name, .process_set = process_set}));
  }
  for (TensorHandle& handle : handles) handle.wait();
}

void broadcast_parameters(const torch::nn::Module& module, int root, ProcessSet* process_set) {
  NamedTensors tensors;
  for (const auto& item : module.named_parameters()) {
    tensors.emplace_back("parameter." + item.key(), item.value());
  }
  for (const auto& item : module.named_buffers()) {
    tensors.emplace_back("buffer." + item.key(), item.value());
  }
  broadcast_parameters(tensors, root, process_set);
}

void broadcast_parameters(const std::vector<at::Tensor>& tensors, int root,
                          ProcessSet* process_set) {
  NamedTensors numbered;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    numbered.emplace_back(std::to_string(i), tensors[i]);
  }
  broadcast_parameters(numbered, root, process_set);
}

void broadcast_optimizer_state(torch::optim::Optimizer& optimizer, int root,
                               ProcessSet* process_set) {
  const train::OrdinaryTensors ordinary;
  const std::string name = "broadcast_optimizer_state";
  ProcessSet& set = runtime::set_or_world(process_set);
  const bool is_root = set.runtime().rank() == root;
  std::string bytes;
  std::string problem;
  if (is_root) {
    problem = problem_with("cannot be written", [&] {
      std::ostringstream stream;
      torch::save(optimizer, stream);
      bytes = std::move(stream).str();
    });
  }
  check_agreement(name, {{"root", std::to_string(root)}}, problem,
                  {.name = name + ".written", .process_set = &set});
  bytes = broadcast_object(std::move(bytes), root, {.name = name, .process_set = &set});
  if (!is_root) {
    problem = problem_with("cannot take the root's", [&] {
      std::istringstream stream(std::move(bytes));
      torch::load(optimizer, stream, device_of(optimizer));
    });
  }
  check_agreement(name, {}, problem, {.name = name + ".read", .process_set = &set});
}

}  // namespace kolo

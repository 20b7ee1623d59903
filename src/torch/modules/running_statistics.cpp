#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/ones.h>

#include "kolo/runtime.hpp"
#include "kolo/torch/parameter_sync.hpp"
#include "kolo/torch/sync_batch_norm.hpp"
#include "kolo/torch/tensor_collectives.hpp"
#include "torch/modules/batch_moments.hpp"
#include "torch/modules/batch_normalization.hpp"
#include "torch/tensors/agreement.hpp"
#include "torch/tensors/plain_arithmetic.hpp"

namespace kolo {
namespace {

const std::string kOperation = "sync_running_statistics";

/// The buffers of one module.
struct RunningStatistics {
  std::string name;  // of the module in the model
  at::Tensor mean;
  at::Tensor variance;
  at::Tensor batches;  // undefined if the module does not count them
};

at::Tensor buffer_of(const torch::nn::Module& module, const std::string& name) {
  const auto buffers = module.named_buffers(/*recurse=*/false);
  const at::Tensor* const found = buffers.find(name);
  return found != nullptr ? *found : at::Tensor();
}

void collect_statistics(const torch::nn::Module& module, const std::string& name,
                        std::vector<RunningStatistics>& all) {
  const at::Tensor mean = buffer_of(module, "running_mean");
  const at::Tensor variance = buffer_of(module, "running_var");
  if (mean.defined() && variance.defined()) {
    all.push_back({name, mean, variance, buffer_of(module, "num_batches_tracked")});
  }
  for (const auto& item : module.named_children()) {
    collect_statistics(*item.value(), name.empty() ? item.key() : name + "." + item.key(), all);
  }
}

std::string prefix_of(const RunningStatistics& statistics) {
  return statistics.name.empty() ? "" : statistics.name + ".";
}

void copy_from(int root, const std::vector<RunningStatistics>& all, ProcessSet& set) {
  std::vector<std::pair<std::string, at::Tensor>> buffers;
  for (const RunningStatistics& one : all) {
    buffers.emplace_back(prefix_of(one) + "running_mean", one.mean);
    buffers.emplace_back(prefix_of(one) + "running_var", one.variance);
    buffers.emplace_back(prefix_of(one) + "num_batches_tracked", one.batches);
  }
  broadcast_parameters(buffers, root, &set);
}

void combine(const RunningStatistics& own, ProcessSet& set) {
  const auto options = own.mean.options().dtype(at::kDouble);
  const at::Tensor weight = own.batches.defined() ? own.batches.to(options) : at::ones({}, options);
  const std::string name = kOperation + "." + prefix_of(own);
  const tensors::Moments all = tensors::merge(
      {weight, own.mean.to(at::kDouble), own.variance.to(at::kDouble)}, set, name + "statistics");
  if (all.count.item<double>() == 0.0) return;  // no rank has seen a batch
  own.mean.copy_(all.mean);
  own.variance.copy_(all.variance);
  if (!own.batches.defined()) return;
  at::Tensor batches = own.batches;
  allreduce_(batches,
             {.op = ReduceOp::Max, .name = name + "num_batches_tracked", .process_set = &set});
}

}  // namespace

void sync_running_statistics(const torch::nn::Module& module,
                             const RunningStatisticsOptions& options) {
  const tensors::PlainArithmetic plain;
  ProcessSet& set =
      options.process_set != nullptr ? *options.process_set : Runtime::current().world();
  std::vector<RunningStatistics> all;
  collect_statistics(module, "", all);
  std::string names;
  for (const RunningStatistics& one : all) names += (names.empty() ? "'" : ", '") + one.name + "'";
  const std::string root = options.root ? std::to_string(*options.root) : "none";
  tensors::agree(set, kOperation, kOperation,
                 {{"the list of modules with running statistics", names}, {"the root", root}}, "");
  if (options.root) return copy_from(*options.root, all, set);
  for (const RunningStatistics& one : all) combine(one, set);
}

}  // namespace kolo

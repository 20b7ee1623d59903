#include "kolo/extras/gather_for_metrics.hpp"

#include <string>

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/tensor.h>

#include "kolo/agreement.hpp"
#include "kolo/error.hpp"
#include "kolo/torch/tensor_collectives.hpp"

namespace kolo {
namespace {

constexpr const char* kGatherForMetrics = "gather_for_metrics";

std::string problem_with_rows(const std::vector<at::Tensor>& tensors,
                              const std::optional<DistributedSampler::Batch>& batch) {
  if (!batch) {
    return "the sampler has no batch that was consumed. Call its consume() when the program takes "
           "a "
           "batch from the loader, before this.";
  }
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) return "a tensor is undefined. Give one row for each sample.";
    const std::string expected =
        ", and the batch consumed last has " + std::to_string(batch->samples) +
        " samples. Give one row for each, and call the sampler's consume() "
        "once for each batch.";
    if (tensor.dim() == 0) return "a tensor is a scalar" + expected;
    if (tensor.size(0) != static_cast<std::int64_t>(batch->samples)) {
      return "a tensor has " + std::to_string(tensor.size(0)) + " rows" + expected;
    }
  }
  return {};
}

/// Moves row i of rank r to place i · ranks + r, as in the epoch's order.
at::Tensor in_order_of_epoch(const at::Tensor& gathered, std::int64_t ranks, std::int64_t padding) {
  std::vector<std::int64_t> shape = gathered.sizes().vec();
  const std::int64_t rows = shape.front();
  shape.front() = rows / ranks;
  shape.insert(shape.begin(), ranks);
  return gathered.reshape(shape).transpose(0, 1).flatten(0, 1).narrow(0, 0, rows - padding);
}

}  // namespace

std::vector<at::Tensor> gather_for_metrics(const std::vector<at::Tensor>& tensors,
                                           const DistributedSampler& sampler) {
  ProcessSet& set = sampler.process_set();
  const std::string name = set.next_name(kGatherForMetrics);
  const auto batch = sampler.last_batch();
  check_agreement(kGatherForMetrics,
                  {{"the sampler's position", sampler.state()},
                   {"the number of tensors", std::to_string(tensors.size())}},
                  problem_with_rows(tensors, batch),
                  {.name = name + ".batch", .process_set = &set});
  std::vector<at::Tensor> gathered;
  if (tensors.empty()) return gathered;
  const at::NoGradGuard no_grad;
  for (const at::Tensor& all : grouped_allgather(tensors, {.name = name, .process_set = &set})) {
    if (all.size(0) != set.size() * static_cast<std::int64_t>(batch->samples)) {
      throw InvalidArgument(
          "gather_for_metrics: a rank has joined, and has no rows of the batch. Evaluate on all "
          "ranks, after join().");
    }
    gathered.push_back(
        in_order_of_epoch(all, set.size(), static_cast<std::int64_t>(batch->padding)));
  }
  return gathered;
}

at::Tensor gather_for_metrics(const at::Tensor& tensor, const DistributedSampler& sampler) {
  return gather_for_metrics(std::vector<at::Tensor>{tensor}, sampler).front();
}

at::Tensor pad_across_ranks(const at::Tensor& tensor, const at::Scalar& value,
                            ProcessSet* process_set) {
  ProcessSet& set = member_set(process_set);
  const std::string name = set.next_name("pad_across_ranks");
  std::string problem;
  if (!tensor.defined() || tensor.dim() == 0) {
    problem = "the tensor is undefined or a scalar. Give one with a row for each sample.";
  }
  const std::int64_t dimensions = tensor.defined() ? tensor.dim() : 0;
  check_agreement("pad_across_ranks", {{"the number of dimensions", std::to_string(dimensions)}},
                  problem, {.name = name + ".dimensions", .process_set = &set});
  at::Tensor largest = at::tensor(tensor.sizes(), at::kLong);
  allreduce_(largest, {.op = ReduceOp::Max, .name = name, .process_set = &set});
  std::vector<std::int64_t> padding;  // before and after, from the last dimension on
  for (std::int64_t i = dimensions - 1; i > 0; --i) {
    padding.insert(padding.end(), {0, largest[i].item<std::int64_t>() - tensor.size(i)});
  }
  return at::constant_pad_nd(tensor, padding, value);
}

}  // namespace kolo

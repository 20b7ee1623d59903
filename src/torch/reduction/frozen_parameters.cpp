#include "torch/reduction/frozen_parameters.hpp"

#include <cstddef>
#include <limits>
#include <unordered_map>

#include <c10/util/StringUtil.h>

#include "comm/shared_segment.hpp"
#include "torch/buckets/bucket_plan.hpp"
#include "torch/reduction/parameter_watch.hpp"
#include "torch/sharding/parameter_memory.hpp"
#include "torch/tensors/agreement.hpp"
#include "torch/tensors/parameter_storage.hpp"
#include "torch/tensors/tensor_memory.hpp"
#include "torch/tensors/write_protection.hpp"

namespace kolo::tensors {
namespace {

bool is_shareable(const at::Tensor& tensor) {
  return !tensor.requires_grad() && problem_with_type(tensor).empty() && tensor.is_cpu() &&
         tensor.numel() > 0 && has_own_storage(tensor);
}

FrozenParameters::Named shareable(const FrozenParameters::Named& parameters) {
  std::unordered_map<const void*, int> users;  // of each storage
  for (const auto& [name, tensor] : parameters) {
    if (tensor.has_storage()) ++users[tensor.storage().unsafeGetStorageImpl()];
  }
  FrozenParameters::Named found;
  for (const auto& [name, tensor] : parameters) {
    if (!is_shareable(tensor) || users[tensor.storage().unsafeGetStorageImpl()] > 1) continue;
    found.emplace_back(name, tensor);
  }
  return found;
}

std::vector<Fact> facts_of(const FrozenParameters::Named& parameters) {
  std::vector<Fact> facts{
      {"number of frozen parameters on the CPU", std::to_string(parameters.size())}};
  for (const auto& [name, tensor] : parameters) {
    facts.push_back({"frozen parameter",
                     c10::str("'", name, "', ", tensor.scalar_type(), " ", tensor.sizes())});
  }
  return facts;
}

/// One bucket for each dtype.
BucketPlan plan_of(const std::vector<at::Tensor>& tensors, int ranks) {
  std::vector<PlannedParameter> planned;
  std::vector<std::size_t> order;
  for (const at::Tensor& tensor : tensors) {
    order.push_back(planned.size());
    planned.push_back(
        {.count = static_cast<std::size_t>(tensor.numel()), .dtype = dtype_of(tensor)});
  }
  return plan_buckets(planned, order, std::numeric_limits<std::size_t>::max(),
                      static_cast<std::size_t>(ranks), comm::page_bytes());
}

}  // namespace

void FrozenParameters::share(const Named& parameters, ProcessSet& all,
                             const OperationOptions& options) {
  const Named found = shareable(parameters);
  agree(all, options.name + ".agreement", "DistributedOptimizer", facts_of(found), {});
  OperationOptions probe = options;
  probe.name += ".probe";
  if (found.empty() || !can_keep_one_copy(at::kCPU, probe)) return;
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : found) tensors.push_back(tensor);
  const BucketPlan plan = plan_of(tensors, options.process_set->size());
  const auto memory = make_copy_per_node(plan, options);
  memory->move_in(tensors, plan);
  memory_ = memory->buffer().owner();
  for (const auto& [name, tensor] : found) {
    frozen_.push_back({name, tensor, tensor.const_data_ptr(), 0});
  }
  accept_writes();
  protect_writes(memory->buffer(), found, *options.process_set);
}

bool FrozenParameters::is_elsewhere(const Frozen& parameter) const {
  return has_one_copy(parameter.tensor) &&
         (memory_.expired() || parameter.tensor.const_data_ptr() != parameter.address);
}

FrozenParameters::Named FrozenParameters::parameters() const {
  Named parameters;
  for (const Frozen& frozen : frozen_) {
    if (!is_elsewhere(frozen)) parameters.emplace_back(frozen.name, frozen.tensor);
  }
  return parameters;
}

void FrozenParameters::require_untouched() const {
  for (const Frozen& frozen : frozen_) {
    if (is_elsewhere(frozen)) continue;
    if (frozen.tensor.const_data_ptr() != frozen.address) ParameterWatch::refuse_move(frozen.name);
    const auto version = static_cast<std::uint32_t>(frozen.tensor._version());
    if (version != frozen.version) ParameterWatch::refuse_write(frozen.name);
  }
}

void FrozenParameters::accept_writes() {
  for (Frozen& frozen : frozen_) {
    frozen.version = static_cast<std::uint32_t>(frozen.tensor._version());
  }
}

}  // namespace kolo::tensors

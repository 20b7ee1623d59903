#include "train/gradients/frozen_parameters.hpp"

#include <cstddef>
#include <limits>
#include <unordered_map>

#include "comm/shared_memory.hpp"
#include "train/buckets/bucket_plan.hpp"
#include "train/gradients/grad_hooks.hpp"
#include "train/sharding/parameter_memory.hpp"
#include "train/tensors/parameter_storage.hpp"
#include "train/tensors/tensor_memory.hpp"

namespace kolo::train {
namespace {

/// Another optimizer may reduce a parameter that is frozen for a while.
bool is_movable(const at::Tensor& tensor, const at::Device& device) {
  return !tensor.requires_grad() && !GradHooks::are_on(tensor) &&
         problem_with_type(tensor).empty() && tensor.device() == device && tensor.numel() > 0 &&
         has_own_storage(tensor) && !tensor.is_conj() && !tensor.is_neg();
}

/// One bucket per dtype.
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

std::vector<ReducedParameter> FrozenParameters::movable(const std::vector<ReducedParameter>& all,
                                                        const at::Device& device) {
  std::unordered_map<const void*, int> users;  // of each storage
  for (const ReducedParameter& parameter : all) {
    if (!parameter.tensor.has_storage()) continue;
    ++users[parameter.tensor.storage().unsafeGetStorageImpl()];
  }
  std::vector<ReducedParameter> found;
  for (const ReducedParameter& parameter : all) {
    if (!is_movable(parameter.tensor, device)) continue;
    if (users[parameter.tensor.storage().unsafeGetStorageImpl()] > 1) continue;
    found.push_back(parameter);
  }
  return found;
}

void FrozenParameters::share(const std::vector<ReducedParameter>& parameters,
                             const OperationOptions& options) {
  const ProcessSet& set = *options.process_set;
  const std::vector<at::Tensor> tensors = tensors_of(parameters);
  const BucketPlan plan = plan_of(tensors, set.size());
  const auto memory = make_copy_per_node(plan, options);
  memory->move_in(tensors, plan);
  memory_ = memory->buffer().owner();
  for (const ReducedParameter& parameter : parameters) {
    const std::int64_t begin = parameter.tensor.numel() * set.rank() / set.size();
    const std::int64_t end = parameter.tensor.numel() * (set.rank() + 1) / set.size();
    add(parameter, {begin, parameter.tensor.view(-1).narrow(0, begin, end - begin)});
  }
}

void FrozenParameters::add(const std::vector<ReducedParameter>& parameters,
                           const GatheredUnits& units) {
  units_ = &units;
  for (const ReducedParameter& parameter : parameters) {
    add(parameter, own_elements(parameter.tensor.storage()));
  }
}

void FrozenParameters::add(const ReducedParameter& parameter, ElementRange share) {
  frozen_.push_back({parameter, std::move(share), ParameterWatch::address_of(parameter.tensor),
                     static_cast<std::uint32_t>(parameter.tensor._version())});
}

/// Whether an optimizer has moved it since, and now watches it.
bool FrozenParameters::is_elsewhere(const Frozen& frozen) const {
  const at::Tensor& tensor = frozen.parameter.tensor;
  if (units_ != nullptr) {
    return tensor.storage().unsafeGetStorageImpl() == frozen.address &&
           units_of(tensor.storage()) != units_;
  }
  return is_fully_sharded(tensor) &&
         (memory_.expired() || ParameterWatch::address_of(tensor) != frozen.address);
}

FrozenParameters::Named FrozenParameters::parameters() const {
  Named parameters;
  for (const Frozen& frozen : frozen_) {
    if (is_elsewhere(frozen)) continue;
    parameters.emplace_back(frozen.parameter.name, frozen.parameter.tensor);
  }
  return parameters;
}

std::vector<std::pair<ReducedParameter, ElementRange>> FrozenParameters::shares() const {
  std::vector<std::pair<ReducedParameter, ElementRange>> shares;
  for (const Frozen& frozen : frozen_) {
    if (is_elsewhere(frozen) || frozen.share.elements.numel() == 0) continue;
    shares.emplace_back(frozen.parameter, frozen.share);
  }
  return shares;
}

void FrozenParameters::require_untouched() const {
  for (const Frozen& frozen : frozen_) {
    if (is_elsewhere(frozen)) continue;
    const at::Tensor& tensor = frozen.parameter.tensor;
    const std::string& name = frozen.parameter.name;
    if (ParameterWatch::address_of(tensor) != frozen.address) ParameterWatch::refuse_move(name);
    const auto version = static_cast<std::uint32_t>(tensor._version());
    if (version != frozen.version) ParameterWatch::refuse_write(name);
  }
}

void FrozenParameters::accept_writes() {
  for (Frozen& frozen : frozen_) {
    frozen.version = static_cast<std::uint32_t>(frozen.parameter.tensor._version());
  }
}

}  // namespace kolo::train

#include "train/gradients/parameter_watch.hpp"

#include <algorithm>
#include <cstring>

#include "kolo/error.hpp"
#include "train/tensors/parameter_storage.hpp"

namespace kolo::train {

std::vector<at::Tensor> tensors_of(const std::vector<ReducedParameter>& parameters) {
  std::vector<at::Tensor> tensors;
  for (const ReducedParameter& parameter : parameters) tensors.push_back(parameter.tensor);
  return tensors;
}

const void* ParameterWatch::address_of(const at::Tensor& parameter) {
  if (is_gathered_on_use(parameter)) return parameter.storage().unsafeGetStorageImpl();
  return parameter.const_data_ptr();
}

ParameterWatch::ParameterWatch(const std::vector<ReducedParameter>& parameters)
    : parameters_(parameters), remembered_(parameters.size()) {
  for (const ReducedParameter& parameter : parameters_) {
    places_.push_back({parameter.tensor.options(), parameter.tensor.sizes().vec()});
  }
}

void ParameterWatch::pin() {
  is_pinned_ = true;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    places_[i].address = address_of(parameters_[i].tensor);
  }
}

void ParameterWatch::require_in_place() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& parameter = parameters_[i].tensor;
    const std::string& name = parameters_[i].name;
    const Place& place = places_[i];
    if (!parameter.options().type_equal(place.type) || parameter.sizes() != place.shape) {
      throw InvalidArgument("DistributedOptimizer: parameter '" + name +
                            "' has another dtype, device or shape than when it was wrapped. Change "
                            "the model before you wrap its optimizer.");
    }
    if (is_pinned_ && address_of(parameter) != place.address) refuse_move(name);
  }
}

void ParameterWatch::refuse_move(const std::string& name) {
  throw InvalidArgument(
      "DistributedOptimizer: the elements of parameter '" + name +
      "' have been moved out of sharded memory, by set_data(), the module's to() or "
      "torch::load, so step() would not update them. Copy into the parameter with copy_(), or "
      "use the optimizer's load().");
}

void ParameterWatch::refuse_writes() {
  versions_.clear();
  for (const ReducedParameter& parameter : parameters_) {
    versions_.push_back(static_cast<std::uint32_t>(parameter.tensor._version()));
  }
}

void ParameterWatch::require_unwritten() const {
  for (std::size_t i = 0; i < versions_.size(); ++i) {
    const auto version = static_cast<std::uint32_t>(parameters_[i].tensor._version());
    if (version != versions_[i]) refuse_write(parameters_[i].name);
  }
}

void ParameterWatch::refuse_write(const std::string& name) {
  throw InvalidArgument(
      "DistributedOptimizer: parameter '" + name +
      "' was written outside step(). With shard = full it has one value for all ranks: write in "
      "full_parameters(), and load by load().");
}

void ParameterWatch::require_no_whole_state(const WrappedOptimizer& optimizer) const {
  if (!is_pinned_) return;
  for (const ReducedParameter& parameter : parameters_) {
    if (!optimizer.has_state(parameter.tensor)) continue;
    throw InvalidArgument(
        "DistributedOptimizer: the wrapped optimizer has state of the whole parameter '" +
        parameter.name +
        "', which is sharded: it was stepped or loaded directly, on this rank alone. Call "
        "step() and load() of the DistributedOptimizer.");
  }
}

ParameterWatch::Sample ParameterWatch::sample(const at::Tensor& parameter) {
  Sample elements{};
  // Reading a GPU's memory would wait for the GPU.
  const bool can_look = parameter.is_cpu() && parameter.is_non_overlapping_and_dense() &&
                        !is_gathered_on_use(parameter);
  const std::int64_t count = can_look ? parameter.numel() : 0;
  if (count == 0) return elements;
  const auto* const bytes = static_cast<const std::byte*>(parameter.const_data_ptr());
  const auto size = static_cast<std::size_t>(parameter.element_size());
  const std::size_t looked_at = std::min(size, sizeof(Element));
  std::size_t next = 0;
  for (const std::int64_t index : {std::int64_t{0}, count / 2, count - 1}) {
    std::memcpy(elements[next++].data(), bytes + static_cast<std::size_t>(index) * size, looked_at);
  }
  return elements;
}

}  // namespace kolo::train

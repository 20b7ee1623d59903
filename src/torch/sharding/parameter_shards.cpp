#include "torch/sharding/parameter_shards.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include "torch/tensors/tensor_memory.hpp"

namespace kolo::tensors {
namespace {

/// Optimizers read their tensors several times: leaves of this size, with their gradients and
/// state, stay in a core's cache meanwhile. On a GPU each leaf costs kernel launches.
std::size_t max_leaf_bytes(const at::Device& device) {
  return device.is_cpu() ? std::size_t{512} << 10 : std::numeric_limits<std::size_t>::max();
}

}  // namespace

ParameterShards::ParameterShards(const std::vector<at::Tensor>& parameters, const BucketPlan& plan,
                                 std::unique_ptr<ParameterMemory> memory,
                                 std::vector<at::Tensor> gradients, int rank)
    : parameters_(parameters),
      layout_(plan.buckets),
      memory_(std::move(memory)),
      gradients_(std::move(gradients)) {
  memory_->move_in(parameters_, plan);
  for (std::size_t i = 0; i < layout_.size(); ++i) {
    const std::size_t begin =
        layout_[i].offset + static_cast<std::size_t>(rank) * gradients_[i].nbytes();
    leaves_.push_back(make_leaves(layout_[i], begin, gradients_[i]));
  }
}

/// The leaves of the shard that begins at byte `begin` and has these gradients.
std::vector<ParameterShards::Leaf> ParameterShards::make_leaves(const Bucket& bucket,
                                                                std::size_t begin,
                                                                const at::Tensor& gradients) const {
  const std::size_t element = size_of(bucket.dtype);
  const std::size_t shard = memory_->offset_of_shard(bucket);
  const std::size_t end = begin + gradients.nbytes();
  const std::size_t most = max_leaf_bytes(gradients.device());
  std::vector<Leaf> leaves;
  for (std::size_t i = 0; i < bucket.members.size(); ++i) {
    const auto [index, offset] = bucket.members[i];
    const at::Tensor& parameter = parameters_[index];
    const std::size_t own_end = std::min(offset + parameter.nbytes(), end);
    std::size_t own_begin = std::max(offset, begin);
    for (std::size_t bytes = 0; own_begin < own_end; own_begin += bytes) {
      bytes = std::min(own_end - own_begin, most);
      const auto count = static_cast<std::int64_t>(bytes / element);
      Leaf leaf{
          index, i, static_cast<std::int64_t>((own_begin - offset) / element),
          tensor_over(memory_->buffer(), shard + own_begin - begin, {count}, parameter.options()),
          gradients.narrow(0, static_cast<std::int64_t>((own_begin - begin) / element), count)
              .detach()};
      leaf.values.set_requires_grad(true);
      leaves.push_back(std::move(leaf));
    }
  }
  return leaves;
}

void ParameterShards::shard_state(WrappedOptimizer& optimizer) const {
  const at::NoGradGuard no_grad;
  for (const std::vector<Leaf>& leaves : leaves_) {
    for (const Leaf& leaf : leaves) {
      const at::Tensor& parameter = parameters_[leaf.parameter];
      auto fields = optimizer.state(parameter);
      if (!fields) continue;
      for (StateField& field : *fields) {
        if (!is_elementwise(field, parameter)) continue;
        const at::Tensor whole = field.value.toTensor().contiguous().view(-1);
        field.value = whole.narrow(0, leaf.begin, leaf.values.numel()).clone();
      }
      optimizer.set_state(leaf.values, *fields);
    }
  }
  for (const at::Tensor& parameter : parameters_) optimizer.erase_state(parameter);
}

void ParameterShards::erase_state(WrappedOptimizer& optimizer) const {
  for (const std::vector<Leaf>& leaves : leaves_) {
    for (const Leaf& leaf : leaves) optimizer.erase_state(leaf.values);
  }
}

void ParameterShards::assign_gradients(std::size_t bucket, const GradientBuckets& buckets,
                                       bool adds_up) const {
  const Bucket& plan = buckets.buckets()[bucket];
  for (const Leaf& leaf : leaves_[bucket]) {
    at::Tensor values = leaf.values;
    if (buckets.is_present(plan, leaf.member)) {
      values.mutable_grad() = leaf.gradient;
    } else if (!adds_up) {
      values.mutable_grad().reset();
    }
  }
}

void ParameterShards::clear_gradients(std::size_t bucket) const {
  for (const Leaf& leaf : leaves_[bucket]) {
    at::Tensor values = leaf.values;
    values.mutable_grad().reset();
  }
}

void ParameterShards::append_gradients(std::vector<at::Tensor>& gradients) const {
  for (const std::vector<Leaf>& leaves : leaves_) {
    for (const Leaf& leaf : leaves) {
      if (leaf.values.grad().defined()) gradients.push_back(leaf.values.grad());
    }
  }
}

void ParameterShards::renumber(const std::vector<std::size_t>& order) {
  const auto renumbered = [&](auto& all) {
    auto old = std::move(all);
    all.clear();
    for (const std::size_t i : order) all.push_back(std::move(old[i]));
  };
  renumbered(layout_);
  renumbered(gradients_);
  renumbered(leaves_);
}

}  // namespace kolo::tensors

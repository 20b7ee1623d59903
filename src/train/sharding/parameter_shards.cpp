#include "train/sharding/parameter_shards.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/GradMode.h>

#include "kolo/collectives.hpp"
#include "kolo/runtime.hpp"
#include "train/tensors/tensor_memory.hpp"

namespace kolo::train {

std::string problem_with_scope(const ProcessSet& set, ShardScope scope) {
  if (scope == ShardScope::World) return {};
  if (set.number() != 0) {
    return "shard_scope = Node with process set " + set.name() +
           ", but Node shards the world only. Use shard_scope = World.";
  }
  if (!set.runtime().is_homogeneous()) {
    return "shard_scope = Node, but not all nodes have the same number of ranks. Start equally "
           "many on each, or use shard_scope = World.";
  }
  return {};
}

ShardSets make_shard_sets(ProcessSet& set, ShardScope scope) {
  Runtime& runtime = set.runtime();
  if (scope == ShardScope::World || runtime.cross_size() == 1)
    return {set.shared_from_this(), nullptr};
  using Place = std::array<std::int64_t, 2>;  // node, place in it
  Place own{runtime.cross_rank(), runtime.local_rank()};
  std::vector<Place> places(static_cast<std::size_t>(set.size()));
  allgather({own.data(), DType::Int64, {1, 2}, Device{}},
            [&](const auto&) { return places.data(); }, {.process_set = &set});
  std::map<std::int64_t, std::vector<int>> nodes;
  std::map<std::int64_t, std::vector<int>> replicas;
  for (std::size_t i = 0; i < places.size(); ++i) {
    nodes[places[i][0]].push_back(static_cast<int>(i));
    replicas[places[i][1]].push_back(static_cast<int>(i));
  }
  ShardSets sets;
  for (const auto& [node, ranks] : nodes) {
    ProcessSet& added = runtime.add_process_set(ranks);
    if (node == own[0]) sets.sharded = added.shared_from_this();
  }
  for (const auto& [place, ranks] : replicas) {
    ProcessSet& added = runtime.add_process_set(ranks);
    if (place == own[1]) sets.replicas = added.shared_from_this();
  }
  return sets;
}

namespace {

/// Optimizers read their tensors several times: leaves of this size, with their gradients and
/// state, stay in a core's cache meanwhile. On a GPU each leaf costs kernel launches.
std::size_t max_leaf_bytes(const at::Device& device) {
  return device.is_cpu() ? std::size_t{512} << 10 : std::numeric_limits<std::size_t>::max();
}

using Shape = std::vector<std::int64_t>;

/// State with an element for each of the leaf's is known by its shape. State of an own shape may be
/// [1], so a leaf of one element has another.
Shape shape_of_piece(std::int64_t count) { return count == 1 ? Shape{1, 1} : Shape{count}; }

/// Copies the elements that the program has written to the master copy: those that differ from its
/// rounded values.
void take_writes(const ParameterShards::Leaf& leaf) {
  const at::Tensor elements = leaf.elements.to(leaf.values.device());
  const at::Tensor rounded = leaf.values.detach().to(elements.scalar_type());
  // On a GPU a comparison would wait for the GPU.
  if (elements.is_cpu() && at::equal(rounded, elements)) return;
  leaf.values.detach().copy_(at::where(rounded == elements, leaf.values.detach(), elements));
}

}  // namespace

at::TensorOptions UpdateType::of(at::TensorOptions memory) const {
  const auto dtype = c10::typeMetaToScalarType(memory.dtype());
  const bool is_wide = master_weights && (dtype == at::kHalf || dtype == at::kBFloat16);
  return memory.dtype(is_wide ? at::kFloat : dtype)
      .device(offload ? at::Device(at::kCPU) : memory.device());
}

ParameterShards::ParameterShards(const std::vector<at::Tensor>& parameters, const BucketPlan& plan,
                                 std::unique_ptr<ParameterMemory> memory,
                                 std::vector<at::Tensor> gradients, const UpdateType& type,
                                 int rank)
    : parameters_(parameters),
      layout_(plan.buckets),
      memory_(std::move(memory)),
      type_(type),
      gradients_(std::move(gradients)) {
  memory_->move_in(parameters_, plan);
  for (std::size_t i = 0; i < layout_.size(); ++i) {
    const std::size_t bytes =
        static_cast<std::size_t>(gradients_[i].numel()) * size_of(layout_[i].dtype);
    const std::size_t begin = layout_[i].offset + static_cast<std::size_t>(rank) * bytes;
    leaves_.push_back(make_leaves(layout_[i], begin, begin + bytes, gradients_[i]));
  }
}

/// The leaves of the shard from byte `begin` to `end` of the plan, which has these gradients.
std::vector<ParameterShards::Leaf> ParameterShards::make_leaves(const Bucket& bucket,
                                                                std::size_t begin, std::size_t end,
                                                                const at::Tensor& gradients) const {
  const at::NoGradGuard no_grad;
  const std::size_t element = size_of(bucket.dtype);
  const std::size_t shard = memory_->offset_of_shard(bucket);
  const at::Device device = memory_->buffer().device().kind == DeviceKind::Cpu
                                ? at::Device(at::kCPU)
                                : gradients.device();
  const at::TensorOptions type = at::TensorOptions(scalar_type_of(bucket.dtype)).device(device);
  const at::TensorOptions update_type = type_.of(type);
  const std::size_t most = max_leaf_bytes(update_type.device());
  std::vector<Leaf> leaves;
  for (std::size_t i = 0; i < bucket.members.size(); ++i) {
    const auto [index, offset] = bucket.members[i];
    const at::Tensor& parameter = parameters_[index];
    const std::size_t own_end = std::min(offset + parameter.nbytes(), end);
    std::size_t own_begin = std::max(offset, begin);
    for (std::size_t bytes = 0; own_begin < own_end; own_begin += bytes) {
      bytes = bucket.is_whole ? own_end - own_begin : std::min(own_end - own_begin, most);
      const auto count = static_cast<std::int64_t>(bytes / element);
      const Shape shape = bucket.is_whole ? parameter.sizes().vec() : shape_of_piece(count);
      const at::Tensor elements =
          tensor_over(memory_->buffer(), shard + own_begin - begin, shape, type);
      Leaf leaf{index,
                i,
                static_cast<std::int64_t>((own_begin - offset) / element),
                elements,
                elements.to(update_type).detach(),
                gradients.narrow(0, static_cast<std::int64_t>((own_begin - begin) / element), count)
                    .view(shape)
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
      if (const at::Tensor master = optimizer.master(parameter); master.defined()) {
        leaf.values.detach().copy_(
            master.view(-1).narrow(0, leaf.begin, leaf.values.numel()).view(leaf.values.sizes()));
      }
      auto fields = optimizer.state(parameter);
      if (!fields) continue;
      for (StateField& field : *fields) {
        if (!is_elementwise(field, parameter)) continue;
        const at::Tensor whole = field.value.toTensor().contiguous().view(-1);
        const at::Tensor own =
            whole.narrow(0, leaf.begin, leaf.values.numel()).view(leaf.values.sizes());
        // State in another type than the parameter's keeps it.
        const bool is_alike = own.scalar_type() == parameter.scalar_type();
        field.value =
            own.to(leaf.values.device(), is_alike ? leaf.values.scalar_type() : own.scalar_type(),
                   /*non_blocking=*/false, /*copy=*/true);
      }
      optimizer.set_state(leaf.values, *fields);
    }
  }
  for (const at::Tensor& parameter : parameters_) {
    optimizer.erase_state(parameter);
    optimizer.set_master(parameter, {});
  }
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
      values.mutable_grad() = leaf.gradient.to(values.options().requires_grad(false));
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

void ParameterShards::clear_gradients_of(std::size_t parameter) const {
  for (const std::vector<Leaf>& leaves : leaves_) {
    for (const Leaf& leaf : leaves) {
      if (leaf.parameter == parameter) at::Tensor(leaf.values).mutable_grad().reset();
    }
  }
}

void ParameterShards::append_gradients(std::vector<at::Tensor>& gradients) const {
  for (const std::vector<Leaf>& leaves : leaves_) {
    for (const Leaf& leaf : leaves) {
      if (leaf.values.grad().defined()) gradients.push_back(leaf.values.grad());
    }
  }
}

std::vector<const ParameterShards::Leaf*> ParameterShards::begin_update(std::size_t bucket) const {
  const at::NoGradGuard no_grad;
  std::vector<const Leaf*> stepped;
  for (const Leaf& leaf : leaves_[bucket]) {
    if (!leaf.values.grad().defined()) continue;
    if (leaf.has_master()) take_writes(leaf);
    stepped.push_back(&leaf);
  }
  return stepped;
}

void ParameterShards::end_update(std::size_t bucket) const {
  const at::NoGradGuard no_grad;
  for (const Leaf& leaf : leaves_[bucket]) {
    if (leaf.has_master() && leaf.values.grad().defined()) leaf.elements.copy_(leaf.values);
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

}  // namespace kolo::train

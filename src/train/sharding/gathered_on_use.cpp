#include "train/sharding/gathered_on_use.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "base/log.hpp"
#include "comm/shared_memory.hpp"
#include "kolo/collectives.hpp"
#include "kolo/runtime.hpp"
#include "kolo/torch/program_stream.hpp"
#include "runtime/api/collectives.hpp"
#include "runtime/engine/engine.hpp"
#include "train/sharding/operator_watch.hpp"
#include "train/sharding/parameter_memory.hpp"
#include "train/tensors/run_or_throw_on_all.hpp"
#include "train/tensors/tensor_memory.hpp"

namespace kolo::train {
namespace {

bool can_share(const ProcessSet& set) {
  return set.number() == 0 && set.runtime().local_size() > 1 && set.engine()->can_share_in_nodes();
}

/// Joins the segments of the node's ranks, so that each has its own pages. Null if the system
/// gives none.
std::shared_ptr<comm::JoinedMapping> join_segments(std::size_t segment_bytes,
                                                   const OperationOptions& options) {
  const std::shared_ptr<SharedWindow> window = runtime::make_node_window(segment_bytes, options);
  if (window == nullptr) return nullptr;
  std::vector<comm::JoinedMapping::Part> parts;
  for (int rank = 0; rank < window->size(); ++rank) {
    parts.push_back({window->segment(rank).data(), segment_bytes, parts.size() * segment_bytes});
  }
  return std::make_shared<comm::JoinedMapping>(parts.size() * segment_bytes, parts);
}

bool holds_on_all(bool holds, const OperationOptions& options) {
  std::int64_t value = holds ? 1 : 0;
  const TensorView view{&value, DType::Int64, {1}, Device{}};
  allreduce(
      view, view,
      {.op = ReduceOp::Min, .name = options.name + ".all", .process_set = options.process_set});
  return value == 1;
}

}  // namespace

std::optional<SharedBuffer> make_node_memory(std::size_t size_bytes,
                                             const OperationOptions& options) {
  ProcessSet& world = *options.process_set;
  if (!can_share(world)) return std::nullopt;
  const auto sharers = static_cast<std::size_t>(world.runtime().local_size());
  const std::size_t pages = size_bytes / sharers / comm::page_bytes() + 1;
  const std::size_t segment_bytes = pages * comm::page_bytes();
  std::shared_ptr<comm::JoinedMapping> memory;
  run_or_throw_on_all(world, options.name + ".joined", "DistributedOptimizer",
                      "sharing memory in its node",
                      [&] { memory = join_segments(segment_bytes, options); });
  if (!holds_on_all(memory != nullptr, options)) return std::nullopt;
  const TensorView extent{
      memory->data(), DType::UInt8, {static_cast<std::int64_t>(sharers * segment_bytes)}, Device{}};
  return SharedBuffer(options.name, extent, memory);
}

namespace {

/// Bytes of each rank's shards of all buckets.
std::size_t shard_bytes(const BucketPlan& plan, const ProcessSet& set) {
  std::size_t bytes = 0;
  for (const Bucket& bucket : plan.buckets) {
    bytes += bucket.shard_bytes(static_cast<std::size_t>(set.size()));
  }
  return bytes;
}

SharedBuffer make_shards(const BucketPlan& plan, const UnitSetup& setup,
                         const OperationOptions& options) {
  ProcessSet& set = *options.process_set;
  const at::Device device = setup.offload ? at::Device(at::kCPU) : setup.device;
  const std::size_t bytes = shard_bytes(plan, set) + shard_bytes(setup.frozen_plan, set);
  const std::string name = options.name + ".shards";
  std::shared_ptr<at::Tensor> memory;
  run_or_throw_on_all(set, name, "DistributedOptimizer", "allocating its shards", [&] {
    memory = std::make_shared<at::Tensor>(
        at::empty({static_cast<std::int64_t>(bytes)}, at::TensorOptions(at::kByte).device(device)));
  });
  return {name, view_of(*memory, name), memory};
}

/// Logs the units on the set's first rank.
void log_plan(const GatheredUnits& units, std::size_t shard_bytes, const ProcessSet& set) {
  if (set.rank() > 0) return;
  constexpr double kMiB = 1 << 20;
  KOLO_LOG(Info) << "shard = full gathers " << units.units().size()
                 << " units when they are used, from " << units.units().front().name << " to "
                 << units.units().back().name << "; each rank keeps "
                 << static_cast<double>(shard_bytes) / kMiB << " MiB of parameters and "
                 << static_cast<double>(units.slot_bytes()) / kMiB << " MiB for gathered units"
                 << (units.sharers() > 1 ? ", its part of one copy on each node" : "");
}

class GatheredOnUse final : public ParameterMemory {
 public:
  GatheredOnUse(const BucketPlan& plan, UnitSetup setup, const OperationOptions& options)
      : ParameterMemory(make_shards(plan, setup, options)),
        setup_(std::move(setup)),
        options_(options) {
    for (const Bucket& bucket : plan.buckets) {
      offsets_[bucket.offset] = frozen_offset_;
      frozen_offset_ += bucket.shard_bytes(ranks());
    }
  }
  ~GatheredOnUse() override {
    units_.reset();
    forget_unused_units();
  }

  std::size_t offset_of_shard(const Bucket& bucket) const override {
    return offsets_.at(bucket.offset);
  }

  void move_in(const std::vector<at::Tensor>& parameters, const BucketPlan& plan) override {
    std::vector<GatheredUnits::Unit> units;
    for (const std::string& name : setup_.units.names) units.push_back({name, {}});
    const auto unit_of = [&](std::size_t parameter) -> GatheredUnits::Unit& {
      return units[setup_.units.unit_of[parameter]];
    };
    for (const Bucket& bucket : plan.buckets) {
      unit_of(bucket.members.front().parameter)
          .parts.push_back(take_shard(bucket, parameters, offset_of_shard(bucket)));
    }
    std::size_t offset = frozen_offset_;
    for (const Bucket& bucket : setup_.frozen_plan.buckets) {
      unit_of(parameters.size() + bucket.members.front().parameter)
          .parts.push_back(take_shard(bucket, setup_.frozen, offset));
      offset += bucket.shard_bytes(ranks());
    }
    make_units(std::move(units));
    log_plan(*units_, buffer().size_bytes(), *options_.process_set);
    watch_operators(units_);
  }

  GatheredUnits* units() const override { return units_.get(); }

  void begin_update() override { units_->release_all(); }
  void end_bucket(std::size_t, const std::string&) override {}
  void end_update(const std::string&) override { units_->end_step(); }

 private:
  void make_units(std::vector<GatheredUnits::Unit> units) {
    ProcessSet& set = *options_.process_set;
    const std::size_t bytes = GatheredUnits::largest_bytes(units, set.size());
    const std::size_t slots =
        setup_.units.keeps_gathered ? units.size() : std::min(GatheredUnits::kSlots, units.size());
    std::optional<SharedBuffer> of_node;
    if (setup_.device.is_cpu()) {
      of_node =
          make_node_memory(slots * bytes, {.name = options_.name + ".node", .process_set = &set});
    }
    OperationOptions options = options_;
    options.keep_alive = buffer().owner();
    run_or_throw_on_all(*options_.process_set, options_.name + ".units", "DistributedOptimizer",
                        "allocating memory for gathered parameters", [&] {
                          units_ = std::make_shared<GatheredUnits>(
                              std::move(units),
                              UnitSlots(slots, bytes, setup_.device, std::move(of_node)),
                              std::move(options), setup_.reducer, setup_.calls);
                        });
  }

  std::size_t ranks() const { return static_cast<std::size_t>(options_.process_set->size()); }

  /// Copies this rank's shard of the first rank's parameters to the offset in the buffer.
  GatheredUnits::Part take_shard(const Bucket& bucket, const std::vector<at::Tensor>& parameters,
                                 std::size_t buffer_offset) {
    const at::NoGradGuard no_grad;
    const ProcessSet& set = *options_.process_set;
    const at::TensorOptions type = parameters[bucket.members.front().parameter].options();
    const auto count = static_cast<std::int64_t>(bucket.gradient_count());
    const at::Tensor whole = at::zeros({count}, type.requires_grad(false));
    GatheredUnits::Part part{};
    for (const Bucket::Member& member : bucket.members) {
      const at::Tensor& parameter = parameters[member.parameter];
      const std::size_t offset = member.offset - bucket.offset;
      part.members.push_back({parameter.storage(), offset});
      if (set.rank() > 0) continue;
      whole.narrow(0, static_cast<std::int64_t>(offset / size_of(bucket.dtype)), parameter.numel())
          .copy_(parameter.detach().view({-1}));
    }
    OperationOptions options = options_;
    options.name += ".values";
    options.stream = ProgramStream::current(setup_.device).handle();
    const TensorView view = view_of(whole, options.name);
    broadcast(view, set.ranks().front(), options);
    const std::int64_t own = count / set.size();
    const bool is_offloaded = buffer().device().kind == DeviceKind::Cpu;
    part.begin = bucket.shard_bytes(ranks()) * static_cast<std::size_t>(set.rank());
    part.shard =
        tensor_over(buffer(), buffer_offset, {own}, is_offloaded ? type.device(at::kCPU) : type);
    part.shard.copy_(whole.narrow(0, set.rank() * own, own));
    return part;
  }

  const UnitSetup setup_;
  const OperationOptions options_;
  std::size_t frozen_offset_ = 0;  // where the shards of frozen parameters begin, after all others
  std::unordered_map<std::size_t, std::size_t> offsets_;  // by the bucket's offset in the plan
  std::shared_ptr<GatheredUnits> units_;
};

}  // namespace

std::unique_ptr<ParameterMemory> make_gathered_on_use(const BucketPlan& plan, UnitSetup setup,
                                                      const OperationOptions& options) {
  forget_unused_units();  // of a model that was destroyed after its optimizer
  return std::make_unique<GatheredOnUse>(plan, std::move(setup), options);
}

}  // namespace kolo::train

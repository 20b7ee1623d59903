#include "train/gradients/bucket_layouts.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>

#include <ATen/ops/zeros.h>

#include "comm/shared_memory.hpp"
#include "runtime/engine/engine.hpp"
#include "train/tensors/parameter_storage.hpp"
#include "train/tensors/tensor_memory.hpp"

namespace kolo::train {
namespace {

/// Operations' names, which error texts show: "….bucket 2 of 5 (0.mlp.up.weight and 13 more)".
std::vector<std::string> names_of(const std::vector<Bucket>& buckets,
                                  const std::vector<ReducedParameter>& parameters,
                                  const std::string& prefix) {
  std::vector<std::string> names;
  for (const Bucket& bucket : buckets) {
    std::string name = prefix + ".bucket " + std::to_string(names.size() + 1) + " of " +
                       std::to_string(buckets.size()) + " (" +
                       parameters[bucket.members.front().parameter].name;
    const std::size_t others = bucket.members.size() - 1;
    if (others > 0) name += " and " + std::to_string(others) + " more";
    names.push_back(name + ")");
  }
  return names;
}

std::vector<std::string> names_of(const std::vector<ReducedParameter>& parameters) {
  std::vector<std::string> names;
  for (const ReducedParameter& parameter : parameters) names.push_back(parameter.name);
  return names;
}

/// backward() usually computes the gradients of the last parameters first.
std::vector<std::size_t> last_first(const std::vector<ReducedParameter>& parameters) {
  return ArrivalOrder::complete({}, parameters.size());
}

}  // namespace

BucketLayout::BucketLayout(const ParametersToReduce& parameters, const ReductionSetup& setup,
                           const std::string& prefix, GradientBuckets new_buckets,
                           Residuals& residuals, ReducedGradients& reduced, bool waits_in_backward)
    : buckets(std::move(new_buckets)),
      reduces_by_pass(shares_slots() && setup.options.accumulation == Accumulation::Reduced &&
                      setup.options.backward_passes_per_step > 1),
      arrivals(buckets.buckets(), parameters.all.size(), setup.options.backward_passes_per_step,
               reduces_by_pass),
      reductions(setup, buckets, residuals, reduced,
                 names_of(buckets.buckets(), parameters.all, prefix), names_of(parameters.all)),
      pipeline(shares_slots() ? make_shared_slots_pipeline(reductions, arrivals,
                                                           setup.options.backward_passes_per_step,
                                                           reduces_by_pass, waits_in_backward)
                              : make_own_memory_pipeline(reductions)) {}

BucketLayouts::BucketLayouts(const ParametersToReduce& parameters, const ReductionSetup& setup,
                             const std::string& prefix)
    : parameters_(parameters),
      setup_(setup),
      prefix_(prefix),
      is_sparse_(parameters.all.size()),
      reduced_(make_whole_gradients(parameters.tensors)),
      arrived_(parameters.all.size()) {}

void BucketLayouts::follow_arrivals() {
  if (!arrived_) return;
  const ArrivalOrder::Agreed agreed =
      arrived_->agree(*setup_.options.process_set, prefix_ + ".order");
  follow(agreed.order, agreed.sparse);
}

void BucketLayouts::follow(const std::vector<std::size_t>& order, const std::vector<bool>& sparse) {
  if (!arrived_) return;
  arrived_.reset();
  const Residuals::ByParameter residuals = residuals_.take();
  lay_out(ArrivalOrder::complete(order, parameters_.all.size()), sparse);
  lay_out_residuals(residuals);
}

std::vector<std::size_t> BucketLayouts::order() const {
  std::vector<std::size_t> order;
  if (arrived_) return order;
  for (const Bucket& bucket : now_->buckets.buckets()) {
    for (const Bucket::Member& member : bucket.members) order.push_back(member.parameter);
  }
  return order;
}

void BucketLayouts::lay_out_residuals(const Residuals::ByParameter& residuals) {
  const GradientCompression& compression = setup_.compression;
  const std::vector<Bucket>& buckets = now_->buckets.buckets();
  std::vector<Residuals::Part> parts;
  for (const Bucket& bucket : buckets) {
    Residuals::Part part{0, bucket.gradient_count()};
    if (compression.is_piecewise() && !setup_.hook.error_feedback) {
      const ops::NodePlaces places = setup_.options.process_set->engine()->node_places();
      const ops::Range piece = places.own_piece(part.count);
      part = {piece.begin, piece.length};
    } else if (compression.is_of_replicas) {  // of this rank's shard
      const bool has_replicas = reduced_->shards() != nullptr && setup_.sets.replicas != nullptr;
      part.count = has_replicas ? part.count / shard_count() : 0;
      part.begin = static_cast<std::size_t>(sharded().rank()) * part.count;
    }
    const bool has_feedback = (compression.has_codec(bucket) && compression.has_error_feedback) ||
                              (setup_.hook.error_feedback && !is_complex(bucket.dtype));
    if (!has_feedback) part = {};
    parts.push_back(part);
  }
  residuals_.lay_out(buckets, parts, parameters_.tensors, residuals);
}

// --- for the modes ---

std::vector<PlannedParameter> BucketLayouts::planned(
    const std::vector<ReducedParameter>& parameters) const {
  std::vector<PlannedParameter> planned;
  for (const ReducedParameter& parameter : parameters) {
    planned.push_back({.count = static_cast<std::size_t>(parameter.tensor.numel()),
                       .dtype = dtype_of(parameter.tensor),
                       .group = parameter.group,
                       .is_compressed = parameter.is_compressed,
                       .is_whole = parameter.is_whole});
  }
  return planned;
}

std::size_t BucketLayouts::bytes_for(const std::vector<PlannedParameter>& planned) const {
  const std::size_t wanted = setup_.options.bucket_bytes;
  return wanted > 0 ? wanted : default_bucket_bytes(planned, parameters_.tensors.front().is_cuda());
}

BucketPlan BucketLayouts::plan(const std::vector<std::size_t>& order, std::size_t shards) const {
  std::vector<PlannedParameter> all = planned(parameters_.all);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (is_sparse_[i]) all[i].count = 0;
  }
  return plan_buckets(all, order, bytes_for(all), shards);
}

BucketPlan BucketLayouts::plan_of_gradients(BucketPlan plan) const {
  const auto least = setup_.options.reduce_dtype;
  return least ? widen(std::move(plan), *dtype_of(*least)) : plan;
}

OperationOptions BucketLayouts::operation_options(const std::string& what, ProcessSet* set) const {
  return {.name = prefix_ + "." + what, .process_set = set};
}

GradientBuckets BucketLayouts::make_buckets(BucketPlan plan, ProcessSet* set) {
  return {parameters_.tensors, std::move(plan), is_sparse_,
          operation_options("memory." + std::to_string(count_++), set)};
}

void BucketLayouts::use(GradientBuckets buckets) {
  now_ =
      std::make_unique<BucketLayout>(parameters_, setup_, prefix_ + "." + std::to_string(count_),
                                     std::move(buckets), residuals_, *reduced_, waits_in_backward_);
}

void BucketLayouts::shard(const BucketPlan& plan, std::unique_ptr<ParameterMemory> memory,
                          std::vector<at::Tensor> gradients) {
  const UpdateType type{setup_.options.master_weights, setup_.options.offload};
  ParameterShards shards(parameters_.tensors, plan, std::move(memory), std::move(gradients), type,
                         sharded().rank());
  shards.shard_state(setup_.wrapped);
  reduced_ = make_sharded_gradients(parameters_.tensors, names_of(parameters_.all),
                                    std::move(shards), setup_.sets);
  parameters_.watch.pin();
  setup_.wrapped.refuse_own_save();
}

void BucketLayouts::use_slots() {
  // One bucket is filled while one is reduced and one may be late.
  constexpr std::size_t kSlots = 3;
  now_.reset();  // before its successor needs memory
  const std::vector<Bucket>& layout = reduced_->shards()->layout();
  use(make_buckets(share_slots(plan_of_gradients({.buckets = layout}), kSlots), &sharded()));
}

namespace {

/// Each rank has all reduced gradients, and parameters of its own.
class WholeLayouts : public BucketLayouts {
 public:
  WholeLayouts(const ParametersToReduce& parameters, const ReductionSetup& setup,
               const std::string& prefix)
      : BucketLayouts(parameters, setup, prefix) {
    for (const at::Tensor& parameter : parameters.tensors) {
      if (has_one_copy(parameter)) make_own_copy(parameter);  // of an earlier optimizer
    }
    use(make_buckets(plan_of_gradients(plan(last_first(parameters.all), 1)),
                     setup.options.process_set));
  }

 protected:
  void lay_out(const std::vector<std::size_t>& order, const std::vector<bool>& sparse) override {
    keep_sparse(sparse);
    rebuild(plan(order, 1), setup_.options.process_set);
  }

  /// Lays out buckets for this plan of the parameters, with the present gradients.
  void rebuild(const BucketPlan& parameters, ProcessSet* set) {
    GradientBuckets buckets = make_buckets(plan_of_gradients(parameters), set);
    for (std::size_t i = 0; i < parameters_.tensors.size(); ++i) {
      if (parameters_.tensors[i].grad().defined()) buckets.move_in({i});
    }
    use(std::move(buckets));
  }

 private:
  /// sparse_allreduce only takes sums. A codec's residual belongs to the gradient in its bucket, so
  /// compressed ones become dense.
  void keep_sparse(const std::vector<bool>& sparse) {
    const DistributedOptimizerOptions& options = setup_.options;
    const bool is_a_sum = options.op == ReduceOp::Sum || options.op == ReduceOp::Average;
    if (options.sparse_as_dense || !is_a_sum) return;
    is_sparse_ = sparse;
    for (std::size_t i = 0; i < is_sparse_.size(); ++i) {
      if (setup_.compression.codec != nullptr && parameters_.all[i].is_compressed) {
        is_sparse_[i] = false;
      }
    }
  }
};

/// Like whole ones until the first reduction. Then each rank updates its shards of every bucket,
/// and has all reduced gradients, or only those of its shards.
class ShardedLayouts final : public WholeLayouts {
 public:
  ShardedLayouts(const ParametersToReduce& parameters, const ReductionSetup& setup,
                 const std::string& prefix, bool keeps_gradients)
      : WholeLayouts(parameters, setup, prefix), keeps_gradients_(keeps_gradients) {}

 private:
  void lay_out(const std::vector<std::size_t>& order, const std::vector<bool>&) override {
    const BucketPlan parameters = plan(order, shard_count());
    rebuild(parameters, &sharded());  // frees the old buckets before sharding, which needs memory
    GradientBuckets& buckets = now_->buckets;
    std::vector<at::Tensor> gradients;
    for (const Bucket& bucket : buckets.buckets()) {
      buckets.fill(bucket, setup_.step.flags(), nullptr);
      const auto count = static_cast<std::int64_t>(bucket.gradient_count() / shard_count());
      at::Tensor shard = buckets.flat(bucket).narrow(0, sharded().rank() * count, count).detach();
      gradients.push_back(keeps_gradients_ ? std::move(shard) : shard.clone());
    }
    shard(parameters,
          make_copy_per_rank(parameters, buckets.device(),
                             operation_options("parameters", &sharded())),
          std::move(gradients));
    for (std::size_t i = 0; i < buckets.buckets().size(); ++i) {
      reduced_->assign(buckets, i, /*is_first=*/true);
    }
    if (keeps_gradients_) {
      use(std::move(buckets));  // the same, for reduced gradients that are sharded now
    } else {
      use_slots();
    }
  }

  const bool keeps_gradients_;
};

/// Parameters are sharded from the beginning: ranks share a copy of them, or gather them on use, in
/// which case a bucket has the parameters of one unit. Later only the order of buckets changes.
class FullLayouts final : public BucketLayouts {
 public:
  FullLayouts(const ParametersToReduce& parameters, const ReductionSetup& setup,
              const std::string& prefix)
      : BucketLayouts(parameters, setup, prefix) {
    if (setup.gathers_on_use) plan_units();
    waits_in_backward_ = !units_;  // a wait could keep parameters from the ranks that gather them
    const BucketPlan layout = units_ ? plan_of_units() : plan_of_pages();
    const at::Device device = parameters.tensors.front().device();
    std::vector<at::Tensor> gradients;
    for (const Bucket& bucket : plan_of_gradients(layout).buckets) {
      gradients.push_back(
          at::zeros({static_cast<std::int64_t>(bucket.gradient_count() / shard_count())},
                    at::TensorOptions(scalar_type_of(bucket.dtype)).device(device)));
    }
    shard(layout, make_memory(layout, device), std::move(gradients));
    parameters.watch.refuse_writes();
    use_slots();
  }

 private:
  /// Orders buckets by the arrival of their last gradient.
  void lay_out(const std::vector<std::size_t>& order, const std::vector<bool>&) override {
    std::vector<std::size_t> arrival(order.size());
    for (std::size_t i = 0; i < order.size(); ++i) arrival[order[i]] = i;
    const std::vector<Bucket>& layout = reduced_->shards()->layout();
    const auto completion = [&](std::size_t bucket) {
      std::size_t last = 0;
      for (const Bucket::Member& member : layout[bucket].members) {
        last = std::max(last, arrival[member.parameter]);
      }
      return last;
    };
    std::vector<std::size_t> numbers(layout.size());
    std::iota(numbers.begin(), numbers.end(), std::size_t{0});
    std::ranges::sort(numbers, {}, completion);
    if (std::ranges::is_sorted(numbers)) return;
    reduced_->shards()->renumber(numbers);
    use_slots();
  }

  /// Shards that divide into pages, so that each rank keeps the pages of its own.
  BucketPlan plan_of_pages() const {
    // At least this many by default, so that padding is a small part of a shard.
    constexpr std::size_t kPagesPerShard = 16;
    const std::size_t page = comm::page_bytes();
    const std::vector<PlannedParameter> all = planned(parameters_.all);
    std::size_t bytes = bytes_for(all);
    if (setup_.options.bucket_bytes == 0) {
      bytes = std::max(bytes, kPagesPerShard * shard_count() * page);
    }
    return plan_buckets(all, last_first(parameters_.all), bytes, shard_count(), page);
  }

  BucketPlan plan_of_units() const {
    const std::vector<PlannedParameter> all = in_units(planned(parameters_.all), 0);
    return plan_buckets(all, by_unit(parameters_.all, 0), bytes_for(all), shard_count());
  }

  /// Treats frozen parameters as if they had gradients.
  std::size_t unit_bytes() const {
    std::vector<PlannedParameter> all = planned(parameters_.all);
    const std::vector<PlannedParameter> frozen = planned(parameters_.frozen);
    all.insert(all.end(), frozen.begin(), frozen.end());
    return bytes_for(all);
  }

  void plan_units() {
    std::vector<UnitMember> members;
    for (const auto* const parameters : {&parameters_.all, &parameters_.frozen}) {
      for (const ReducedParameter& parameter : *parameters) {
        members.push_back(
            {parameter.name, parameter.tensor.nbytes(), parameter.place, parameter.group});
      }
    }
    units_ = train::plan_units(members, unit_bytes());
    units_->keeps_gathered = !setup_.options.reshard_after_forward;
  }

  /// The order of parameters by unit; `first_number` is the index in units_ of the first one.
  std::vector<std::size_t> by_unit(const std::vector<ReducedParameter>& parameters,
                                   std::size_t first_number) const {
    std::vector<std::size_t> order = last_first(parameters);
    std::ranges::stable_sort(order, {}, [&](std::size_t i) {
      return std::pair{units_->unit_of[first_number + i], parameters[i].place};
    });
    return order;
  }

  /// The parameters of a unit as one group.
  std::vector<PlannedParameter> in_units(std::vector<PlannedParameter> planned,
                                         std::size_t first_number) const {
    for (std::size_t i = 0; i < planned.size(); ++i) {
      planned[i].may_split_group = planned[i].group == PlannedParameter::kNoGroup;
      planned[i].group = static_cast<int>(units_->unit_of[first_number + i]);
    }
    return planned;
  }

  std::unique_ptr<ParameterMemory> make_memory(const BucketPlan& plan,
                                               const at::Device& device) const {
    const OperationOptions options = operation_options("parameters", &sharded());
    if (!units_) return make_copy_per_node(plan, options);
    const std::vector<ReducedParameter>& frozen = parameters_.frozen;
    const std::size_t first = parameters_.all.size();
    BucketPlan frozen_plan = plan_buckets(in_units(planned(frozen), first), by_unit(frozen, first),
                                          unit_bytes(), shard_count());
    return make_gathered_on_use(plan,
                                {.units = *units_,
                                 .frozen = tensors_of(frozen),
                                 .frozen_plan = std::move(frozen_plan),
                                 .device = device,
                                 .offload = setup_.options.offload,
                                 .reducer = prefix_,
                                 .calls = setup_.unit_calls},
                                options);
  }

  std::optional<UnitPlan> units_;  // if parameters are gathered when they are used
};

}  // namespace

std::unique_ptr<BucketLayouts> make_bucket_layouts(const ParametersToReduce& parameters,
                                                   const ReductionSetup& setup,
                                                   const std::string& prefix) {
  const Shard shard = *setup.options.shard;
  std::unique_ptr<BucketLayouts> layouts;
  if (shard == Shard::None) {
    layouts = std::make_unique<WholeLayouts>(parameters, setup, prefix);
  } else if (shard == Shard::Full) {
    layouts = std::make_unique<FullLayouts>(parameters, setup, prefix);
  } else {
    const bool keeps_gradients = !shards_gradients(shard);
    layouts = std::make_unique<ShardedLayouts>(parameters, setup, prefix, keeps_gradients);
  }
  layouts->lay_out_residuals({});
  return layouts;
}

}  // namespace kolo::train

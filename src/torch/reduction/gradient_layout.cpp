// How a GradientReducer lays out its buckets and shards parameters by that layout.
#include <string>
#include <utility>
#include <vector>

#include "torch/reduction/gradient_reducer.hpp"
#include "torch/tensors/tensor_memory.hpp"

namespace kolo::tensors {
namespace {

// One bucket is filled while one is reduced and one may be late.
constexpr std::size_t kSlots = 3;

}  // namespace

GradientReducer::Layout::Layout(const GradientReducer& reducer, GradientBuckets new_buckets)
    : buckets(std::move(new_buckets)),
      reduces_by_pass(shares_slots() &&
                      reducer.setup_.options.accumulation == Accumulation::Reduced &&
                      reducer.passes() > 1),
      arrivals(buckets.buckets(), reducer.parameters_.size(), reducer.passes(), reduces_by_pass),
      reductions(reducer.setup_, buckets, reducer.shards(),
                 reducer.prefix_ + "." + std::to_string(reducer.layouts_)),
      pipeline(shares_slots() ? make_shared_slots_pipeline(reductions, arrivals,
                                                           reduces_by_pass ? reducer.passes() : 1)
                              : make_own_memory_pipeline(reductions)) {}

GradientBuckets GradientReducer::make_buckets(const std::vector<std::size_t>& order) {
  std::vector<PlannedParameter> planned;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const TensorView view = view_of(tensors_[i], parameters_[i].name);
    planned.push_back({is_sparse_[i] ? 0 : view.count(), view.dtype, parameters_[i].group,
                       parameters_[i].optimizer_group});
  }
  const std::size_t wanted = setup_.options.bucket_bytes;
  const std::size_t bytes = wanted > 0 ? wanted : default_bucket_bytes(planned);
  const bool is_for_shards = !arrived_ && is_sharded();
  ProcessSet* const set = is_for_shards ? setup_.sets.sharded : setup_.options.process_set;
  const std::size_t shards = is_for_shards ? static_cast<std::size_t>(set->size()) : 1;
  return {tensors_,
          plan_buckets(planned, order, bytes, shards),
          is_sparse_,
          {.name = prefix_ + ".memory." + std::to_string(layouts_++), .process_set = set}};
}

void GradientReducer::follow_arrival(WrappedOptimizer& wrapped) {
  if (!arrived_) return;
  const DistributedOptimizerOptions& options = setup_.options;
  const ArrivalOrder::Agreed agreed = arrived_->agree(*options.process_set, prefix_ + ".order");
  arrived_.reset();
  // sparse_allreduce takes no other reductions.
  const bool may_stay_sparse = !options.sparse_as_dense && !is_sharded() &&
                               (options.op == ReduceOp::Sum || options.op == ReduceOp::Average);
  if (may_stay_sparse) is_sparse_ = agreed.sparse;
  follow(agreed.order, wrapped);
}

void GradientReducer::follow_order(const std::vector<std::size_t>& order,
                                   const std::vector<bool>& sparse, WrappedOptimizer& wrapped) {
  if (!arrived_) return;
  arrived_.reset();
  is_sparse_ = sparse;
  follow(ArrivalOrder::completed(order, parameters_.size()), wrapped);
}

std::vector<std::size_t> GradientReducer::order() const {
  std::vector<std::size_t> order;
  if (arrived_) return order;
  for (const Bucket& bucket : buckets().buckets()) {
    for (const Bucket::Member& member : bucket.members) order.push_back(member.parameter);
  }
  return order;
}

void GradientReducer::follow(const std::vector<std::size_t>& order, WrappedOptimizer& wrapped) {
  auto layout = std::make_unique<Layout>(*this, make_buckets(order));
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (tensors_[i].grad().defined()) layout->buckets.move_in(i);
  }
  layout_ = std::move(layout);  // before sharding, which needs the old buckets' memory
  if (is_sharded()) shard_parameters(wrapped);
}

void GradientReducer::shard_parameters(WrappedOptimizer& wrapped) {
  GradientBuckets& buckets = layout_->buckets;
  for (const Bucket& bucket : buckets.buckets()) buckets.fill(bucket, setup_.step.is_active);
  const bool shares_slots = setup_.options.shard == Shard::Gradients;
  OperationOptions options{.name = prefix_ + ".parameters", .process_set = setup_.sets.sharded};
  shards_.emplace(buckets, shares_slots, options);
  shards_->shard_state(wrapped);
  watch_.pin();
  wrapped.refuse_own_save();
  for (std::size_t i = 0; i < buckets.buckets().size(); ++i) {
    shards_->assign_gradients(i, buckets, /*adds_up=*/false);
  }
  buckets.clear_gradients();
  if (!shares_slots) {
    layout_ = std::make_unique<Layout>(*this, std::move(buckets));
    return;
  }
  options.name = prefix_ + ".slots";
  BucketPlan slots = share_slots(buckets.plan(), kSlots);
  layout_.reset();  // before its successor needs memory
  layout_ = std::make_unique<Layout>(
      *this, GradientBuckets(tensors_, std::move(slots), is_sparse_, options));
}

}  // namespace kolo::tensors

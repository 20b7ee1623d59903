#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "kolo/tensor_collectives.hpp"
#include "torch/reduction/gradient_reducer.hpp"
#include "torch/tensors/tensor_memory.hpp"

namespace kolo::tensors {
namespace {

// As one is filled, one is reduced, and one may be late.
constexpr std::size_t kSlots = 3;

}  // namespace

void GradientReducer::lay_out(const std::vector<std::size_t>& order) {
  std::vector<PlannedParameter> planned;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const TensorView view = view_of(tensors_[i], parameters_[i].name);
    planned.push_back({is_sparse_[i] ? 0 : view.count(), view.dtype, parameters_[i].group,
                       parameters_[i].optimizer_group});
  }
  const std::size_t bytes =
      options_.bucket_bytes > 0 ? options_.bucket_bytes : default_bucket_bytes(planned);
  const bool is_divided = follows_arrival_ && options_.shard != Shard::None;
  OperationOptions options;
  options.name = prefix_ + ".memory." + std::to_string(layouts_++);
  options.process_set = is_divided ? sets_.divided : options_.process_set;
  const std::size_t shards = is_divided ? static_cast<std::size_t>(sets_.divided->size()) : 1;
  buckets_.emplace(tensors_, plan_buckets(planned, order, bytes, shards), is_sparse_, options);
  bucket_of_.assign(parameters_.size(), 0);
  const std::vector<Bucket>& all = buckets_->buckets();
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (const Bucket::Member& member : all[i].members) bucket_of_[member.parameter] = i;
  }
  states_.clear();
  states_.resize(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) reset(i);
  arrivals_.assign(parameters_.size(), 0);
  is_new_.assign(parameters_.size(), false);
}

void GradientReducer::follow_arrival(torch::optim::Optimizer& wrapped) {
  if (std::exchange(follows_arrival_, true)) return;
  const ArrivalOrder::Agreed agreed = arrived_.agree(*options_.process_set, prefix_ + ".order");
  // What sparse_allreduce can do.
  const bool may_stay_sparse = !options_.sparse_as_dense && options_.shard == Shard::None &&
                               (options_.op == ReduceOp::Sum || options_.op == ReduceOp::Average);
  if (may_stay_sparse) is_sparse_ = agreed.sparse;
  follow(agreed.order, wrapped);
}

void GradientReducer::follow_order(const std::vector<std::size_t>& order,
                                   const std::vector<bool>& sparse,
                                   torch::optim::Optimizer& wrapped) {
  if (std::exchange(follows_arrival_, true)) return;
  is_sparse_ = sparse;
  follow(ArrivalOrder::completed(order, parameters_.size()), wrapped);
}

std::vector<std::size_t> GradientReducer::order() const {
  std::vector<std::size_t> order;
  if (!follows_arrival_) return order;
  for (const Bucket& bucket : buckets_->buckets()) {
    for (const Bucket::Member& member : bucket.members) order.push_back(member.parameter);
  }
  return order;
}

void GradientReducer::follow(const std::vector<std::size_t>& order,
                             torch::optim::Optimizer& wrapped) {
  arrived_ = ArrivalOrder(0);
  move_gradients(order);
  if (options_.shard != Shard::None) divide(wrapped);
}

/// Into a new layout.
void GradientReducer::move_gradients(const std::vector<std::size_t>& order) {
  const GradientBuckets old = std::move(*buckets_);
  lay_out(order);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (tensors_[i].grad().defined()) buckets_->adopt(i);
  }
}

void GradientReducer::divide(torch::optim::Optimizer& wrapped) {
  for (const Bucket& bucket : buckets_->buckets()) {
    buckets_->complete(bucket, step_.is_active);
  }
  OperationOptions options;
  options.name = prefix_ + ".parameters";
  options.process_set = sets_.divided;
  recycles_ = options_.shard == Shard::Gradients;
  shards_.emplace(tensors_, *buckets_, recycles_, options);
  shards_->cut(wrapped);
  watch_.pin();
  save_guard_.emplace(wrapped);
  for (std::size_t i = 0; i < states_.size(); ++i) shards_->hand_out(i, *buckets_, true);
  buckets_->drop_gradients();
  if (!recycles_) return;
  if (options_.accumulation == Accumulation::Reduced) rounds_ = options_.backward_passes_per_step;
  passing_.resize(kSlots);
  for (std::size_t i = 0; i < states_.size(); ++i) reset(i);
  options.name = prefix_ + ".slots";
  buckets_.emplace(tensors_, recycle(BucketPlan(buckets_->plan()), kSlots), is_sparse_, options);
}

}  // namespace kolo::tensors

#include "train/gradients/reduced_gradients.hpp"

#include <utility>

#include <ATen/Functions.h>

namespace kolo::train {
namespace {

class WholeGradients final : public ReducedGradients {
 public:
  explicit WholeGradients(const std::vector<at::Tensor>& parameters) : parameters_(parameters) {}

  std::vector<at::Tensor> fill(GradientBuckets& buckets, const Bucket& bucket, const RankFlags& own,
                               double factor) const override {
    return buckets.fill(bucket, own, nullptr, factor);
  }
  std::unique_ptr<BucketReduction> submit(const GradientBuckets& buckets, std::size_t bucket,
                                          const std::string& name,
                                          const DistributedOptimizerOptions& options,
                                          const Coding& coding, const BoundHook& hook,
                                          bool) override {
    return reduce_whole(buckets, bucket, name, options, coding, hook);
  }
  void lend_memory(const GradientBuckets&, const Bucket&) override {}
  at::Tensor result(const GradientBuckets& buckets, std::size_t bucket, bool) override {
    return buckets.flat(buckets.buckets()[bucket]);
  }
  void assign(GradientBuckets& buckets, std::size_t bucket, bool) override {
    buckets.assign_gradients(buckets.buckets()[bucket]);
  }

  void append(std::vector<at::Tensor>& gradients) const override {
    for (const at::Tensor& parameter : parameters_) {
      if (parameter.grad().defined()) gradients.push_back(parameter.grad());
    }
  }
  void visit(const Visit& visit) const override {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (parameters_[i].grad().defined()) visit(i, parameters_[i].mutable_grad());
    }
  }
  void drop(std::size_t parameter) override { parameters_[parameter].mutable_grad().reset(); }
  void clear(GradientBuckets& buckets) override { buckets.clear_gradients(); }
  bool is_in_place(const GradientBuckets& buckets, std::size_t parameter) const override {
    return buckets.is_in_place(parameter);
  }
  bool is_gone(std::size_t) const override { return false; }
  bool is_ignored(std::size_t) const override { return false; }
  void remove_stand_in(std::size_t) override {}
  void remove_stand_ins() override {}

 private:
  const std::vector<at::Tensor>& parameters_;
};

class ShardedGradients final : public ReducedGradients {
 public:
  ShardedGradients(const std::vector<at::Tensor>& parameters, std::vector<std::string> names,
                   ParameterShards shards, const ShardSets& sets)
      : parameters_(parameters),
        sets_(sets),
        shards_(std::move(shards)),
        stand_ins_(parameters, std::move(names)) {}

  std::vector<at::Tensor> fill(GradientBuckets& buckets, const Bucket& bucket, const RankFlags& own,
                               double factor) const override {
    return buckets.fill(bucket, own, &stand_ins_, factor);
  }
  std::unique_ptr<BucketReduction> submit(const GradientBuckets& buckets, std::size_t bucket,
                                          const std::string& name,
                                          const DistributedOptimizerOptions& options,
                                          const Coding& coding, const BoundHook&,
                                          bool is_first) override {
    return reduce_to_shard(buckets, bucket, name, options, coding, sets_,
                           result(buckets, bucket, is_first));
  }
  void lend_memory(const GradientBuckets& buckets, const Bucket& bucket) override {
    if (buckets.plan().slots == 0) return;
    for (const Bucket::Member& member : bucket.members) {
      if (buckets.is_in_place(member.parameter)) stand_ins_.place(member.parameter);
    }
  }
  /// The shard. After the first pass, separate memory, which is then added to it.
  at::Tensor result(const GradientBuckets& buckets, std::size_t bucket, bool is_first) override {
    const at::Tensor& shard = shards_.gradient_shard(bucket);
    if (is_first) return shard;
    later_passes_.resize(buckets.plan().slots);
    at::Tensor& later = later_passes_[bucket % later_passes_.size()];
    if (!later.defined() || later.numel() < shard.numel() || later.dtype() != shard.dtype()) {
      later = at::empty_like(shard);
    }
    return later.narrow(0, 0, shard.numel());
  }
  void assign(GradientBuckets& buckets, std::size_t bucket, bool is_first) override {
    if (!is_first) {
      at::Tensor(shards_.gradient_shard(bucket)).add_(result(buckets, bucket, is_first));
    }
    shards_.assign_gradients(bucket, buckets, /*adds_up=*/!is_first);
    const Bucket& plan = buckets.buckets()[bucket];
    buckets.clear_gradients(plan);
    for (std::size_t i = 0; i < plan.members.size(); ++i) {
      const std::size_t parameter = plan.members[i].parameter;
      const bool is_free = !parameters_[parameter].grad().defined();
      if (is_free && buckets.is_present(plan, i)) stand_ins_.place(parameter);
    }
  }

  void append(std::vector<at::Tensor>& gradients) const override {
    shards_.append_gradients(gradients);
  }
  void visit(const Visit& visit) const override { shards_.for_each_gradient(visit); }
  void drop(std::size_t parameter) override {
    stand_ins_.remove(parameter);
    shards_.clear_gradients_of(parameter);
  }
  void clear(GradientBuckets& buckets) override {
    buckets.clear_gradients();
    stand_ins_.remove_all();
    for (std::size_t i = 0; i < buckets.buckets().size(); ++i) shards_.clear_gradients(i);
  }
  bool is_in_place(const GradientBuckets&, std::size_t parameter) const override {
    return stand_ins_.is_in_place(parameter);
  }
  bool is_gone(std::size_t parameter) const override { return stand_ins_.is_gone(parameter); }
  bool is_ignored(std::size_t parameter) const override {
    return parameters_[parameter].grad().defined() && !stand_ins_.is_in_place(parameter);
  }
  void remove_stand_in(std::size_t parameter) override { stand_ins_.remove(parameter); }
  void remove_stand_ins() override { stand_ins_.remove_all(); }

  ParameterShards* shards() override { return &shards_; }

 private:
  const std::vector<at::Tensor>& parameters_;
  const ShardSets& sets_;
  ParameterShards shards_;
  GradientStandIns stand_ins_;
  std::vector<at::Tensor> later_passes_;  // of each slot
};

}  // namespace

std::unique_ptr<ReducedGradients> make_whole_gradients(const std::vector<at::Tensor>& parameters) {
  return std::make_unique<WholeGradients>(parameters);
}

std::unique_ptr<ReducedGradients> make_sharded_gradients(const std::vector<at::Tensor>& parameters,
                                                         std::vector<std::string> names,
                                                         ParameterShards shards,
                                                         const ShardSets& sets) {
  return std::make_unique<ShardedGradients>(parameters, std::move(names), std::move(shards), sets);
}

}  // namespace kolo::train

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/config.hpp"
#include "kolo/runtime.hpp"
#include "kolo/torch/distributed_optimizer.hpp"
#include "kolo/torch/tensor_collectives.hpp"
#include "train/models.hpp"
#include "train/training_fixture.hpp"

/// Shared code of the tests of sharded training.
namespace kolo::test {

using Optimizer = torch::optim::Optimizer;
using Parameters = std::vector<at::Tensor>;
using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(Parameters)>;

/// An optimizer for parameterized tests.
struct OptimizerCase {
  const char* name;
  MakeOptimizer make;
};
inline void PrintTo(const OptimizerCase& which, std::ostream* stream) { *stream << which.name; }

template <class Class, class Options>
MakeOptimizer maker(Options options) {
  return [=](Parameters parameters) {
    return std::make_unique<Class>(std::move(parameters), options);
  };
}

/// Sign gradient descent, in classes that LibTorch does not know; its state cannot be serialized.
class OwnOptions : public torch::optim::OptimizerCloneableOptions<OwnOptions> {
 public:
  explicit OwnOptions(double rate = 0.05) : lr(rate) {}
  void serialize(torch::serialize::InputArchive& archive) override {
    c10::IValue value;
    archive.read("lr", value);
    lr = value.toDouble();
  }
  void serialize(torch::serialize::OutputArchive& archive) const override {
    archive.write("lr", c10::IValue(lr));
  }
  double get_lr() const override { return lr; }
  void set_lr(double rate) override { lr = rate; }
  double lr;
};
class OwnState : public torch::optim::OptimizerCloneableParamState<OwnState> {};
class OwnOptimizer final : public Optimizer {
 public:
  explicit OwnOptimizer(Parameters parameters)
      : Optimizer(std::move(parameters), std::make_unique<OwnOptions>()) {}
  at::Tensor step(LossClosure closure = nullptr) override {
    at::Tensor loss = closure ? closure() : at::Tensor();
    const at::NoGradGuard no_grad;
    for (auto& group : param_groups()) {
      for (at::Tensor& parameter : group.params()) {
        if (!parameter.grad().defined()) continue;
        parameter.sub_(group.options().get_lr() * parameter.grad().sign());
      }
    }
    return loss;
  }
};

/// Parameters without duplicates: LibTorch lists a tied one twice, and would update it twice.
inline Parameters distinct_parameters(const torch::nn::Module& model) {
  Parameters parameters;
  std::set<const void*> known;
  for (const at::Tensor& parameter : model.parameters()) {
    if (known.insert(parameter.unsafeGetTensorImpl()).second) parameters.push_back(parameter);
  }
  return parameters;
}

inline DistributedOptimizer::Options with(Shard shard) {
  DistributedOptimizer::Options options;
  options.shard = shard;
  options.bucket_bytes = 500;  // several buckets; some parameters lie in two shards
  return options;
}
/// Shard::Full, with a copy of the parameters on each node.
inline DistributedOptimizer::Options full_per_node() {
  DistributedOptimizer::Options options = with(Shard::Full);
  if (Config::from_environment().fake_nodes > 0) options.shard_scope = ShardScope::Node;
  return options;
}

/// Whether sums have the same order for every layout. By messages and across nodes they do only if
/// the settings ask for it.
inline bool is_rank_ordered() {
  const Config config = Config::from_environment();
  const bool is_requested = config.algorithm == "allreduce:direct,reduce_scatter:direct";
  return is_requested || (config.shared_memory && config.fake_nodes == 0);
}

inline std::vector<Shard> sharded_modes() {
  return {Shard::Optimizer, Shard::Gradients, Shard::Full};
}
inline std::vector<Shard> all_modes() {
  return {Shard::None, Shard::Optimizer, Shard::Gradients, Shard::Full};
}

/// Whether Shard::Full gathers parameters on use, since these ranks share no memory.
inline bool gathers_on_use() {
  const Runtime& runtime = Runtime::current();
  return runtime.size() > 1 &&
         (!Config::from_environment().shared_memory || runtime.local_size() < runtime.size());
}

inline constexpr const char* kNothingGathered = "ranks share memory: nothing is gathered";

/// Whether the ranks of a node share the memory of gathered units.
inline bool share_gathered_units() {
  const Runtime& runtime = Runtime::current();
  return gathers_on_use() && Config::from_environment().shared_memory && runtime.local_size() > 1 &&
         runtime.is_homogeneous();
}

inline void expect_alike(const at::Tensor& sharded, const at::Tensor& whole,
                         const char* what = "") {
  if (is_rank_ordered()) {
    EXPECT_TRUE(torch::equal(sharded, whole)) << what << largest_difference(sharded, whole);
  } else {
    EXPECT_LT(largest_difference(sharded, whole), 1e-5) << what;
  }
}

/// Expects the same bits on all ranks.
inline void expect_equal_on_all_ranks(const at::Tensor& tensor) {
  if (tensor.is_complex()) return expect_equal_on_all_ranks(torch::view_as_real(tensor));
  EXPECT_TRUE(torch::equal(allreduce(tensor, {.op = ReduceOp::Max}),
                           allreduce(tensor, {.op = ReduceOp::Min})));
}

class ShardedOptimizerTest : public TrainingTest {};

/// The number of elements in the state tensors of an Adam optimizer.
inline std::int64_t state_elements(Optimizer& optimizer) {
  std::int64_t count = 0;
  for (const auto& [key, state] : optimizer.state()) {
    const auto& adam = static_cast<const torch::optim::AdamParamState&>(*state);
    count += adam.exp_avg().numel() + adam.exp_avg_sq().numel();
  }
  return count;
}

}  // namespace kolo::test

// Sharded optimizers with replicas on nodes, and a step that fails on one rank.
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/error.hpp"
#include "runtime/runtimes.hpp"
#include "support/mpi/variants.hpp"
#include "train/sharding.hpp"

namespace kolo::test::sharded_ranks_test {

const AlsoIn also_in({"uneven", "messages", "nodes"});

constexpr std::int64_t kWidth = 9;

TEST_F(ShardedOptimizerTest, Nodes_EachKeepAllShards) {
  const auto run = [&](Shard shard, ShardScope scope) {
    torch::nn::Sequential model = make_mlp(torch::kFloat32);
    torch::optim::Adam inner(model->parameters(), torch::optim::AdamOptions(1e-2).eps(1e-4));
    DistributedOptimizer::Options options = with(shard);
    options.shard_scope = scope;
    DistributedOptimizer optimizer(inner, *model, options);
    for (int step = 0; step < 10; ++step) {
      optimizer.zero_grad();
      loss_of(model, batch_rows(step, runtime_.rank() * 3, 3, kWidth, torch::kFloat32)).backward();
      EXPECT_GT(optimizer.clip_grad_norm_(0.05), 0.05);  // of all shards, once
      optimizer.step();
    }
    if (shard != Shard::None) {
      const int sharers = scope == ShardScope::Node ? runtime_.local_size() : runtime_.size();
      at::Tensor kept = torch::full({1}, state_elements(inner), torch::kLong);
      EXPECT_EQ(allreduce(kept, {.op = ReduceOp::Sum}).item<std::int64_t>(),
                2 * flat(*model).numel() * runtime_.size() / sharers);
    }
    optimizer.join();
    return flat(*model);
  };
  const at::Tensor whole = run(Shard::None, ShardScope::World);
  for (const Shard mode : sharded_modes()) {
    const at::Tensor sharded = run(mode, ShardScope::Node);
    EXPECT_LT(largest_difference(sharded, whole), 1e-5);
    expect_equal_on_all_ranks(sharded);
  }
}

/// An optimizer that can be made to fail.
class FailingOptimizer final : public torch::optim::SGD {
 public:
  using SGD::SGD;
  bool fails = false;
  at::Tensor step(LossClosure closure = nullptr) override {
    if (fails) throw std::runtime_error("no step today");
    return SGD::step(std::move(closure));
  }
};

TEST_F(ShardedOptimizerTest, StepThatFailsOnOneRank_UpdatesTheOtherShards) {
  constexpr int kFailing = 2;
  /// The parameters after each of four steps. Step kFailing may fail on rank 0.
  const auto run = [&](Shard mode, bool fails) {
    torch::nn::Sequential model = make_mlp(torch::kFloat32);
    FailingOptimizer inner(model->parameters(), torch::optim::SGDOptions(0.1));
    DistributedOptimizer::Options options = with(mode);
    options.bucket_bytes = std::size_t{1} << 20;  // one bucket
    DistributedOptimizer optimizer(inner, *model, options);
    const bool is_gathered = mode == Shard::Full && gathers_on_use();
    std::vector<at::Tensor> after;
    const auto backward = [&](int step) {
      optimizer.zero_grad();
      loss_of(model, batch_rows(step, 0, 4, kWidth, torch::kFloat32)).backward();
    };
    for (int step = 0; step < 4; ++step) {
      backward(step);
      const bool is_failing = fails && step == kFailing;
      const auto expect_mismatch = [&] {
        expect_contains(text_thrown_by<MismatchError>([&] { optimizer.step(); }),
                        "no step today on rank 0");
      };
      inner.fails = is_failing && runtime_.rank() == 0;
      if (inner.fails) {
        EXPECT_EQ(text_thrown_by<std::runtime_error>([&] { optimizer.step(); }), "no step today");
      } else if (is_failing && !is_gathered) {
        expect_mismatch();
      } else if (fails && is_gathered && step == kFailing + 1 && runtime_.size() > 1) {
        expect_mismatch();
        backward(step);
        optimizer.step();
      } else {
        optimizer.step();
      }
      after.push_back(flat(*model).clone());
      expect_equal_on_all_ranks(after.back());
    }
    return after;
  };
  for (const Shard mode : sharded_modes()) {
    const std::vector<at::Tensor> failed = run(mode, true);
    const std::vector<at::Tensor> whole = run(mode, false);
    EXPECT_TRUE(torch::equal(failed[kFailing - 1], whole[kFailing - 1]));
    // Rank 0's shard is not updated; all others are.
    const at::Tensor stays = failed[kFailing] == failed[kFailing - 1];
    const at::Tensor steps = failed[kFailing] == whole[kFailing];
    EXPECT_TRUE(stays.logical_xor(steps).all().item<bool>());
    EXPECT_NEAR(stays.sum().item<double>(), static_cast<double>(stays.numel()) / runtime_.size(),
                mode == Shard::Full ? 1056.0 : 32.0);  // padding; with Full, up to a page
    EXPECT_TRUE((failed[kFailing + 1] != failed[kFailing]).all().item<bool>());
  }
}

}  // namespace kolo::test::sharded_ranks_test

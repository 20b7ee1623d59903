// Shard::Full with one copy of the parameters per node: when it is updated, who may write to it,
// and what is refused.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "kolo/process_set.hpp"
#include "kolo/shared_buffer.hpp"
#include "kolo/torch/parameter_sync.hpp"
#include "support/mpi/variants.hpp"
#include "train/sharding.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test::full_sharding_test {

const AlsoIn also_in({"uneven", "messages", "nodes", "groups"});

using namespace std::chrono_literals;

constexpr std::int64_t kElements = 5003;  // several pages, shared by all ranks

/// An optimizer that calls `before_update` before it writes anything.
class Watched final : public Optimizer {
 public:
  Watched(Parameters parameters, std::function<void()> before_update)
      : Optimizer(std::move(parameters), std::make_unique<OwnOptions>()),
        before_update_(std::move(before_update)) {}
  at::Tensor step(LossClosure = nullptr) override {
    before_update_();
    const at::NoGradGuard no_grad;
    for (auto& group : param_groups()) {
      for (at::Tensor& leaf : group.params()) leaf.sub_(leaf.grad());
    }
    return {};
  }

 private:
  std::function<void()> before_update_;
};

class FullShardingTest : public TrainingTest {};

at::Tensor make_weight() { return torch::ones({kElements}, torch::kFloat64).requires_grad_(); }

TEST_F(FullShardingTest, NoRankUpdates_WhileAnotherHasNotEnteredStep) {
  SharedBuffer flags(64);  // of each rank: has entered step(), has updated
  auto* const own = reinterpret_cast<std::atomic<int>*>(flags.data());
  at::Tensor weight = make_weight();
  Watched inner({weight}, [&] { own[1] = 1; });
  DistributedOptimizer optimizer(inner, {{"weight", weight}}, full_per_node());
  const bool is_late = rank() == size() - 1;
  for (int step = 0; step < 3; ++step) {
    barrier();
    own[0] = own[1] = 0;
    barrier();
    (weight * (rank() + 1)).sum().backward();
    optimizer.synchronize();
    if (is_late && flags.is_shared()) {
      for (std::byte* const peer : flags.peers(runtime_.world())) {
        auto* const other = reinterpret_cast<std::atomic<int>*>(peer);
        if (other == own) continue;
        while (other[0] == 0) std::this_thread::yield();
        std::this_thread::sleep_for(20ms);  // long enough for a wrong update
        EXPECT_EQ(other[1].load(), 0);
      }
      EXPECT_TRUE(
          torch::equal(weight.detach(), torch::full_like(weight, 1 - 0.5 * step * (size() + 1))));
    }
    own[0] = 1;
    optimizer.step();
  }
}

TEST_F(FullShardingTest, StepReturns_WhenAllShardsAreUpdated) {
  at::Tensor weight = make_weight();
  Watched inner({weight}, [&] {
    if (rank() == 0) std::this_thread::sleep_for(5ms);
  });
  DistributedOptimizer optimizer(inner, {{"weight", weight}}, full_per_node());
  for (int step = 0; step < 4; ++step) {
    (weight * (rank() + 1)).sum().backward();
    optimizer.step();
    const double expected = 1 - 0.5 * (step + 1) * (size() + 1);  // mean of 1 … size
    EXPECT_TRUE(torch::equal(weight.detach(), torch::full_like(weight, expected))) << step;
    barrier();  // no rank may write before all have compared
  }
}

// In rounds: if all ranks wrote their values, the first rank's might be the last by chance.
TEST_F(FullShardingTest, FirstRanksValues_AreThoseOfTheNode) {
  for (int round = 0; round < 10; ++round) {
    at::Tensor weight = torch::full({kElements}, 7.0 + rank()).requires_grad_();
    torch::optim::SGD inner({weight}, 0.1);
    const DistributedOptimizer optimizer(inner, {{"weight", weight}}, full_per_node());
    EXPECT_TRUE(weight.eq(7 + rank() - runtime_.local_rank()).all().item<bool>());
    barrier();
  }
}

TEST_F(FullShardingTest, BroadcastAfterWrapping_IsAllowed) {
  at::Tensor weight = torch::full({kElements}, 7.0 + rank()).requires_grad_();
  torch::optim::SGD inner({weight}, 0.1);
  DistributedOptimizer optimizer(inner, {{"weight", weight}}, full_per_node());
  broadcast_parameters({{"weight", weight}}, size() - 1);  // as Horovod's users do after wrapping
  EXPECT_TRUE(weight.eq(7 + size() - runtime_.local_size()).all().item<bool>());  // last node's
  barrier();
  weight.sum().backward();
  optimizer.step();
}

TEST_F(FullShardingTest, WritesOutsideOfFullParameters_AreErrors) {
  at::Tensor weight = make_weight();
  at::Tensor bias = make_weight();
  torch::optim::SGD inner({weight, bias}, 0.1);
  DistributedOptimizer optimizer(inner, {{"encoder.weight", weight}, {"encoder.bias", bias}},
                                 full_per_node());
  {
    const at::NoGradGuard no_grad;
    bias[0] = 3;
  }
  const std::string text = text_thrown_by<InvalidArgument>([&] { optimizer.step(); });
  expect_contains(text, "'encoder.bias'");
  expect_contains(text, "full_parameters()");
}

TEST_F(FullShardingTest, ProcessSetOfSomeRanks_SharesOneCopy) {
  if (size() < 3 || runtime_.local_size() < size()) GTEST_SKIP() << "needs three ranks of one node";
  std::vector<int> ranks(static_cast<std::size_t>(size() - 1));
  std::iota(ranks.begin(), ranks.end(), 1);
  ProcessSet& set = runtime_.add_process_set(ranks);
  if (!set.included()) return;
  DistributedOptimizer::Options options = with(Shard::Full);
  options.process_set = &set;
  at::Tensor weight = make_weight();
  torch::optim::SGD inner({weight}, 1.0);
  DistributedOptimizer optimizer(inner, {{"weight", weight}}, options);
  optimizer.full_parameters([&] {
    if (is_last()) weight.data().fill_(7);
  });
  EXPECT_TRUE(torch::equal(weight.detach(), torch::full_like(weight, 7)));
  (weight * rank()).sum().backward();
  optimizer.step();
  EXPECT_TRUE(torch::equal(weight.detach(), torch::full_like(weight, 7 - 0.5 * size())));
}

TEST_F(FullShardingTest, DifferentWrites_AreErrorsOnAllRanks) {
  if (size() == 1) GTEST_SKIP() << "one rank differs from nobody";
  at::Tensor weight = make_weight();
  torch::optim::SGD inner({weight}, 1.0);
  DistributedOptimizer optimizer(inner, {{"encoder.weight", weight}}, full_per_node());
  const std::string text = text_thrown_by<MismatchError>(
      [&] { optimizer.full_parameters([&] { weight.data()[17] = 5 + rank(); }); });
  expect_contains(text, "'encoder.weight'");
  expect_contains(text, "ranks 0 and 1");
  EXPECT_TRUE(torch::equal(weight.detach(), torch::ones_like(weight)));
}

TEST_F(FullShardingTest, FunctionThatThrowsOnOneRank_ChangesNothing) {
  if (size() == 1) GTEST_SKIP() << "one rank differs from nobody";
  at::Tensor weight = make_weight();
  torch::optim::SGD inner({weight}, 1.0);
  DistributedOptimizer optimizer(inner, {{"weight", weight}}, full_per_node());
  const auto write = [&] {
    weight.data().zero_();
    if (rank() == 1) throw std::range_error("no such file");
  };
  if (rank() == 1) {
    EXPECT_THROW(optimizer.full_parameters(write), std::range_error);
  } else {
    expect_contains(text_thrown_by<InvalidArgument>([&] { optimizer.full_parameters(write); }),
                    "no such file");
  }
  EXPECT_TRUE(torch::equal(weight.detach(), torch::ones_like(weight)));
  barrier();
  weight.sum().backward();
  optimizer.step();  // still usable
  EXPECT_TRUE(torch::equal(weight.detach(), torch::zeros_like(weight)));
}

/// LibTorch's allocator, except that it refuses large blocks.
class LowMemory final : public c10::Allocator {
 public:
  LowMemory() { c10::SetCPUAllocator(this); }
  LowMemory(const LowMemory&) = delete;
  LowMemory& operator=(const LowMemory&) = delete;
  ~LowMemory() override { c10::SetCPUAllocator(usual_); }
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes >= std::size_t{kElements} * 8) throw std::bad_alloc();
    return usual_->allocate(bytes);
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  c10::Allocator* const usual_ = c10::GetCPUAllocator();
};

TEST_F(FullShardingTest, RankWithoutMemoryForCopies_IsAnErrorOnAll) {
  at::Tensor small = torch::ones({3}, torch::kFloat64).requires_grad_();
  at::Tensor weight = make_weight();
  torch::optim::SGD inner({small, weight}, 1.0);
  DistributedOptimizer optimizer(inner, {{"small", small}, {"weight", weight}}, full_per_node());
  bool is_called = false;
  const auto write = [&] {
    is_called = true;
    barrier();  // programs may call it; it would never return
  };
  if (rank() == size() - 1) {
    const LowMemory low;
    EXPECT_THROW(optimizer.full_parameters(write), std::bad_alloc);
  } else {
    expect_contains(text_thrown_by<InvalidArgument>([&] { optimizer.full_parameters(write); }),
                    "copying the parameters threw: std::bad_alloc");
  }
  EXPECT_FALSE(is_called);
  ((small.sum() + weight.sum()) * 0.5).backward();
  optimizer.step();  // still in the one copy
  EXPECT_TRUE(torch::equal(small.detach(), torch::full_like(small, 0.5)));
  EXPECT_TRUE(torch::equal(weight.detach(), torch::full_like(weight, 0.5)));
}

TEST_F(FullShardingTest, ParametersMayBeWrappedAgain) {
  at::Tensor weight = make_weight();
  for (const Shard shard : {Shard::Full, Shard::None, Shard::Full, Shard::Full}) {
    torch::optim::SGD inner({weight}, 1.0);
    const at::Tensor before = weight.detach().clone();
    barrier();
    DistributedOptimizer optimizer(inner, {{"weight", weight}},
                                   shard == Shard::Full ? full_per_node() : with(shard));
    optimizer.zero_grad();
    (weight * (rank() + 1)).sum().backward();
    optimizer.step();
    EXPECT_TRUE(torch::equal(weight.detach(), before - 0.5 * (size() + 1)));
    barrier();
  }
}

}  // namespace kolo::test::full_sharding_test

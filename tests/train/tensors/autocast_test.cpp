// Autocast restores the previous state, and a step inside a region leaves no stale casts.
#include "kolo/torch/autocast.hpp"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/error.hpp"
#include "kolo/runtime.hpp"
#include "kolo/torch/distributed_optimizer.hpp"
#include "runtime/runtimes.hpp"
#include "support/mpi/test_world.hpp"
#include "train/sharding.hpp"

namespace kolo::test::autocast_test {

at::ScalarType type_of_product() {
  return torch::ones({2, 2}).matmul(torch::ones({2, 2})).scalar_type();
}

TEST(AutocastTest, Products_RunInSixteenBits) {
  EXPECT_EQ(type_of_product(), at::kFloat);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const Autocast autocast(type);
    EXPECT_EQ(type_of_product(), type);
  }
  EXPECT_EQ(type_of_product(), at::kFloat);
}

TEST(AutocastTest, NestedRegions_RestoreTheOuterOne) {
  const at::ScalarType type = at::autocast::get_autocast_dtype(at::kCPU);
  at::autocast::set_autocast_cache_enabled(false);
  {
    const Autocast outer(at::kHalf);
    EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
    {
      const Autocast middle(at::kBFloat16, at::kCPU, false);
      EXPECT_EQ(type_of_product(), at::kFloat);
      {
        const Autocast inner(at::kBFloat16, at::kCPU, true, false);
        EXPECT_EQ(type_of_product(), at::kBFloat16);
        EXPECT_FALSE(at::autocast::is_autocast_cache_enabled());
      }
      EXPECT_EQ(type_of_product(), at::kFloat);
      EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
    }
    EXPECT_EQ(type_of_product(), at::kHalf);
  }
  EXPECT_EQ(type_of_product(), at::kFloat);
  EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCPU), type);
  EXPECT_FALSE(at::autocast::is_autocast_cache_enabled());
  at::autocast::set_autocast_cache_enabled(true);
}

TEST(AutocastTest, OtherDevices_AreLeftAlone) {
  const at::ScalarType type = at::autocast::get_autocast_dtype(at::kCUDA);
  const at::ScalarType other = type == at::kHalf ? at::kBFloat16 : at::kHalf;
  {
    const Autocast autocast(other, at::kCUDA);
    EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kCUDA));
    EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCUDA), other);
    EXPECT_EQ(type_of_product(), at::kFloat);
  }
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCUDA));
  EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCUDA), type);
}

TEST(AutocastTest, OtherTypesAndDevices_AreRefused) {
  expect_contains(text_thrown_by<InvalidArgument>([] { const Autocast autocast(at::kFloat); }),
                  "Autocast: to Float; it must be BFloat16 or Half");
  expect_contains(
      text_thrown_by<InvalidArgument>([] { const Autocast autocast(at::kHalf, at::kXLA); }),
      "Autocast: on XLA; it must be CPU or CUDA");
  EXPECT_EQ(type_of_product(), at::kFloat);
  EXPECT_EQ(at::autocast::increment_nesting(), 1);
  at::autocast::decrement_nesting();
}

TEST(AutocastTest, CachedCasts_EndWithTheOutermostRegion) {
  const at::Tensor weight = torch::ones({2, 2}).requires_grad_();
  const at::Tensor rows = torch::ones({1, 2});
  const auto sum = [&] { return torch::linear(rows, weight).sum().item<double>(); };
  {
    const Autocast outer(at::kBFloat16);
    EXPECT_EQ(sum(), 4.0);
    weight.detach().fill_(2.0);
    {
      const Autocast inner(at::kBFloat16);
    }
    EXPECT_EQ(sum(), 4.0) << "LibTorch keeps no casts any more: this test shows nothing";
  }
  const Autocast another(at::kBFloat16);
  EXPECT_EQ(sum(), 8.0);
}

/// LibTorch's cache would return the outer region's cast.
TEST(AutocastTest, RegionOfAnotherType_MakesItsOwnCasts) {
  const at::Tensor weight = torch::ones({2, 2}).requires_grad_();
  const at::Tensor rows = torch::ones({1, 2});
  const Autocast outer(at::kBFloat16);
  EXPECT_EQ(torch::linear(rows, weight).scalar_type(), at::kBFloat16);
  {
    const Autocast inner(at::kHalf);
    EXPECT_EQ(torch::linear(rows, weight).scalar_type(), at::kHalf);
  }
  EXPECT_EQ(torch::linear(rows, weight).scalar_type(), at::kBFloat16);
}

TEST(AutocastTest, StepInsideARegion_LeavesNoStaleCasts) {
  Runtime runtime{in_test_world()};
  for (const Shard shard : all_modes()) {
    at::Tensor weight = torch::ones({2, 2}).requires_grad_();
    torch::optim::SGD inner({weight}, 0.5);
    DistributedOptimizer optimizer(inner, {{"weight", weight}}, {.shard = shard});
    const at::Tensor rows = torch::ones({1, 2});
    const Autocast autocast(at::kBFloat16);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      const at::Tensor out = torch::linear(rows, weight).sum();
      EXPECT_EQ(out.item<double>(), 4.0 - 2.0 * step);  // each step takes 0.5 from each weight
      out.backward();
      optimizer.step();
    }
  }
}

}  // namespace kolo::test::autocast_test

#include "kolo/torch/model_dtype.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/error.hpp"
#include "train/sharding.hpp"
#include "train/small_training.hpp"

namespace kolo::test::model_dtype_test {

class ModelDtypeTest : public ShardedOptimizerTest {};

TEST_F(ModelDtypeTest, KeptModules_KeepSharedParametersOfKeptModules) {
  torch::nn::Sequential model(torch::nn::Linear(3, 3), torch::nn::Linear(3, 3));
  const at::Tensor shared = model[0]->as<torch::nn::Linear>()->weight;
  model[1]->as<torch::nn::Linear>()->register_parameter("tied", shared);
  set_dtype(*model, torch::kHalf, modules_named("1"));
  EXPECT_EQ(shared.scalar_type(), torch::kFloat);
  EXPECT_EQ(model[0]->as<torch::nn::Linear>()->bias.scalar_type(), torch::kHalf);
  EXPECT_EQ(model[1]->as<torch::nn::Linear>()->bias.scalar_type(), torch::kFloat);
  EXPECT_THROW(set_dtype(*model, torch::kInt), InvalidArgument);
}

TEST_F(ModelDtypeTest, ShardedModels_AreRefused) {
  torch::nn::Sequential model = make_mlp(torch::kFloat);
  torch::optim::SGD inner(model->parameters(), 0.1);
  const DistributedOptimizer optimizer(inner, *model, with(Shard::Full));
  EXPECT_THROW(set_dtype(*model, torch::kHalf), InvalidArgument);
}

}  // namespace kolo::test::model_dtype_test

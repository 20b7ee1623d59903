#include "kolo/parameter_sync.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/runtime.hpp"
#include "kolo/tensor_collectives.hpp"
#include "torch/models.hpp"

namespace kolo::test {
namespace {

class ParameterSyncTest : public testing::Test {
 protected:
  int rank() const { return runtime_.rank(); }
  int size() const { return runtime_.size(); }

  Runtime runtime_;
};

TEST_F(ParameterSyncTest, BroadcastsParametersAndBuffers) {
  torch::manual_seed(static_cast<std::uint64_t>(rank()));
  torch::nn::Sequential model(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4));
  model->forward(torch::randn({8, 3}));  // running statistics differ now
  const int root = size() - 1;
  broadcast_parameters(*model, root);

  torch::manual_seed(static_cast<std::uint64_t>(root));
  torch::nn::Sequential reference(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4));
  reference->forward(torch::randn({8, 3}));
  EXPECT_TRUE(torch::equal(flat(*model), flat(*reference)));
  for (std::size_t i = 0; i < model->buffers().size(); ++i) {
    EXPECT_TRUE(torch::equal(model->buffers()[i], reference->buffers()[i]));
  }
}

TEST_F(ParameterSyncTest, BroadcastsOptimizerStateToRanksThatHaveNone) {
  torch::nn::Sequential model = make_mlp(torch::kFloat32);
  const auto optimizer = make_optimizer(Algorithm::Adam, model->parameters());
  if (rank() == 0) {  // three steps; the others have none, and another learning rate
    for (int step = 0; step < 3; ++step) {
      optimizer->zero_grad();
      model->forward(batch_rows(step, 0, 4, 9, torch::kFloat32)).sum().backward();
      optimizer->step();
    }
    optimizer->param_groups()[0].options().set_lr(0.125);
  }
  broadcast_parameters(*model, 0);
  const at::Tensor before = flat(*model);
  broadcast_optimizer_state(*optimizer, 0);
  EXPECT_TRUE(torch::equal(flat(*model), before));
  EXPECT_DOUBLE_EQ(optimizer->param_groups()[0].options().get_lr(), 0.125);
  ASSERT_EQ(optimizer->state().size(), model->parameters().size());
  for (const at::Tensor& parameter : model->parameters()) {
    const auto& state = static_cast<const torch::optim::AdamParamState&>(
        *optimizer->state().at(parameter.unsafeGetTensorImpl()));
    EXPECT_EQ(state.step(), 3);
    const at::Tensor moments = state.exp_avg().clone();
    EXPECT_TRUE(torch::equal(broadcast(moments, 0), state.exp_avg()));
  }
}

}  // namespace
}  // namespace kolo::test

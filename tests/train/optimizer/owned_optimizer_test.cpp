// A DistributedOptimizer that owns the optimizer it wraps.
#include <memory>
#include <string>

#include <torch/torch.h>

#include "kolo/torch/distributed_optimizer.hpp"
#include "kolo/torch/parameter_sync.hpp"
#include "train/models.hpp"
#include "train/sharding.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test::owned_optimizer_test {

using torch::optim::AdamW;
using torch::optim::AdamWOptions;

constexpr std::int64_t kWidth = 9;

class OwnedOptimizerTest : public TrainingTest {
 protected:
  /// The parameters after three steps with the optimizer that `wrap` makes for the model.
  template <class Wrap>
  at::Tensor train(const Wrap& wrap) {
    torch::nn::Sequential model = make_mlp(torch::kFloat32);
    const auto optimizer = wrap(model);
    torch::optim::StepLR schedule(*optimizer, /*step_size=*/1, /*gamma=*/0.5);
    for (int step = 0; step < 3; ++step) {
      optimizer->zero_grad();
      loss_of(model, batch_rows(step, 4 * rank(), 4, kWidth, torch::kFloat32)).backward();
      optimizer->step();
      schedule.step();
    }
    return flat(*model);
  }
};

AdamW adamw(torch::nn::Sequential& model) {
  return AdamW(model->parameters(), AdamWOptions(1e-2).eps(1e-4));
}

TEST_F(OwnedOptimizerTest, Training_HasTheSameBitsWhoeverOwnsTheOptimizer) {
  for (const Shard shard : all_modes()) {
    std::unique_ptr<AdamW> own;
    const at::Tensor referenced = train([&](torch::nn::Sequential& model) {
      own = std::make_unique<AdamW>(adamw(model));
      return std::make_unique<DistributedOptimizer>(*own, *model, with(shard));
    });
    const at::Tensor moved = train([&](torch::nn::Sequential& model) {
      return std::make_unique<DistributedOptimizer>(adamw(model), *model, with(shard));
    });
    const at::Tensor pointed_to = train([&](torch::nn::Sequential& model) {
      return std::make_unique<DistributedOptimizer>(std::make_unique<AdamW>(adamw(model)), *model,
                                                    with(shard));
    });
    const std::string mode(name_of(shard));
    expect_equal(moved, referenced, mode);
    expect_equal(pointed_to, referenced, mode);
  }
}

TEST_F(OwnedOptimizerTest, NullPointer_IsRefused) {
  torch::nn::Linear model(2, 2);
  expect_refused([&] { DistributedOptimizer optimizer(std::unique_ptr<AdamW>(), *model); },
                 "a null pointer");
}

}  // namespace kolo::test::owned_optimizer_test

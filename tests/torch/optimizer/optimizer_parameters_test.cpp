// An optimizer's parameters: several models, several optimizers, and parameters that are added
// later.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/error.hpp"
#include "kolo/runtime.hpp"
#include "kolo/torch/distributed_optimizer.hpp"
#include "runtime/runtimes.hpp"
#include "support/mpi/test_world.hpp"
#include "torch/models.hpp"
#include "torch/sharding.hpp"

namespace kolo::test::optimizer_parameters_test {

class OptimizerParametersTest : public testing::Test {
 protected:
  int rank() const { return runtime_.rank(); }
  int size() const { return runtime_.size(); }
  /// This rank's gradient, and its mean over all ranks.
  at::Tensor own(double factor) const { return torch::arange(3) * factor + rank(); }
  at::Tensor mean(double factor) const { return torch::arange(3) * factor + (size() - 1) / 2.0; }
  static at::Tensor make() { return torch::zeros({3}, torch::requires_grad()); }

  Runtime runtime_{in_test_world()};
};

enum class Side { Wrapper, Wrapped };

class AddedGroupTest : public OptimizerParametersTest, public testing::WithParamInterface<Side> {};

INSTANTIATE_TEST_SUITE_P(, AddedGroupTest, testing::Values(Side::Wrapper, Side::Wrapped),
                         [](const auto& test) {
                           return test.param == Side::Wrapper ? "Wrapper" : "Wrapped";
                         });

TEST_P(AddedGroupTest, AddedGroup_TakesPartFromTheNextCallOn) {
  // Added before backward(), or only before step().
  for (const bool before_backward : {true, false}) {
    const at::Tensor first = make();
    torch::optim::SGD inner({first}, 1.0);
    DistributedOptimizer optimizer(inner, {{"first", first}});
    torch::optim::Optimizer& side =
        GetParam() == Side::Wrapper ? static_cast<torch::optim::Optimizer&>(optimizer) : inner;
    (first * own(1)).sum().backward();
    optimizer.step();

    const at::Tensor second = make();
    const auto add = [&] {
      side.add_param_group(torch::optim::OptimizerParamGroup(
          {second}, std::make_unique<torch::optim::SGDOptions>(0.5)));
    };
    if (before_backward) add();
    optimizer.zero_grad();
    (first * own(2) + second * own(3)).sum().backward();
    if (!before_backward) add();
    optimizer.step();
    EXPECT_TRUE(torch::allclose(-first, mean(1) + mean(2)));
    EXPECT_TRUE(torch::allclose(-second, 0.5 * mean(3)));

    // The following steps use it too, whichever side changes its options.
    ASSERT_EQ(optimizer.param_groups().size(), 2U);
    ASSERT_EQ(inner.param_groups().size(), 2U);
    optimizer.param_groups()[1].options().set_lr(0.25);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      second.detach().zero_();
      (first * own(4) + second * own(step)).sum().backward();
      optimizer.step();
      EXPECT_TRUE(torch::allclose(-second, 0.25 * mean(step))) << step;
    }
  }
}

TEST_F(OptimizerParametersTest, GroupsAddedOnBothSides_AreAnError) {
  const at::Tensor first = make();
  torch::optim::SGD inner({first}, 1.0);
  DistributedOptimizer optimizer(inner, {{"first", first}});
  inner.add_param_group(torch::optim::OptimizerParamGroup({make()}));
  optimizer.add_param_group(torch::optim::OptimizerParamGroup({make()}));
  EXPECT_THROW(optimizer.zero_grad(), InvalidArgument);
}

TEST_F(OptimizerParametersTest, RequiresGrad_MayChange) {
  const at::Tensor always = make();
  const at::Tensor later = make().requires_grad_(false);
  torch::optim::SGD inner({always, later}, 1.0);
  DistributedOptimizer optimizer(inner, {{"always", always}, {"later", later}});
  at::Tensor expected = torch::zeros({3});
  for (int step = 0; step < 12; ++step) {
    const bool is_trained = step / 2 % 2 == 1;
    later.requires_grad_(is_trained);
    optimizer.zero_grad();
    (always * own(step) + later * own(2 * step)).sum().backward();
    optimizer.step();
    if (is_trained) expected -= mean(2 * step);
    EXPECT_TRUE(torch::allclose(later, expected)) << step;
  }
  EXPECT_TRUE(torch::allclose(-always, mean(1) * 12 + torch::arange(3) * 54));
}

TEST_F(OptimizerParametersTest, SeveralOptimizers_ShareOneModel) {
  const at::Tensor first = make();
  const at::Tensor second = make();
  torch::optim::SGD first_inner({first}, 1.0);
  torch::optim::SGD second_inner({second}, 1.0);
  // Equal names: operations of the two optimizers must not be confused.
  DistributedOptimizer first_optimizer(first_inner, {{"weight", first}});
  DistributedOptimizer second_optimizer(second_inner, {{"weight", second}});
  for (int step = 0; step < 6; ++step) {
    first.detach().zero_();
    second.detach().zero_();
    first_optimizer.zero_grad();
    second_optimizer.zero_grad();
    (first * own(step) + second * own(-step)).sum().backward();
    if (step % 2 == 1) second_optimizer.synchronize();
    first_optimizer.step();
    second_optimizer.step();
    EXPECT_TRUE(torch::allclose(-first, mean(step))) << step;
    EXPECT_TRUE(torch::allclose(-second, mean(-step))) << step;
  }
}

TEST_F(OptimizerParametersTest, ParameterOfAnotherOptimizer_IsRefusedWhileThatOneLives) {
  for (const Shard shard : all_modes()) {
    SCOPED_TRACE(std::string(name_of(shard)));
    const at::Tensor shared = make();
    const at::Tensor other = make();
    torch::optim::SGD first_inner({shared}, 1.0);
    torch::optim::SGD second_inner({other, shared}, 1.0);
    const DistributedOptimizer::NamedParameters names{{"other", other}, {"shared", shared}};
    {
      DistributedOptimizer first(first_inner, {{"shared", shared}}, with(shard));
      const std::string text = text_thrown_by<InvalidArgument>(
          [&] { const DistributedOptimizer second(second_inner, names, with(shard)); });
      expect_contains(text, "parameter 'shared': it belongs to another DistributedOptimizer");
      (shared * own(1)).sum().backward();
      first.step();
    }
    EXPECT_TRUE(torch::allclose(-shared, mean(1)));
    DistributedOptimizer second(second_inner, names, with(shard));
    second.zero_grad();
    (shared * own(2) + other * own(3)).sum().backward();
    second.step();
    EXPECT_TRUE(torch::allclose(-shared, mean(1) + mean(2)));
    EXPECT_TRUE(torch::allclose(-other, mean(3)));
  }
}

TEST_F(OptimizerParametersTest, OneOptimizer_TrainsSeveralModelsAndTiedParameters) {
  const auto train = [&](bool is_distributed) {
    torch::nn::Sequential encoder = make_mlp(torch::kFloat64);
    torch::nn::Sequential decoder{torch::nn::Linear(3, 9), torch::nn::Linear(9, 9)};
    decoder->to(torch::kFloat64);
    std::vector<at::Tensor> parameters = encoder->parameters();
    for (const at::Tensor& parameter : decoder->parameters()) parameters.push_back(parameter);
    torch::optim::SGD inner(parameters, 0.05);
    std::optional<DistributedOptimizer> optimizer;
    if (is_distributed) optimizer.emplace(inner, *encoder);  // the decoder's have no names
    for (int step = 0; step < 5; ++step) {
      const std::int64_t rows = is_distributed ? 12 / size() : 12;
      const at::Tensor batch =
          batch_rows(step, is_distributed ? rank() * rows : 0, rows, 9, torch::kFloat64);
      const auto pass = [&] {
        const at::Tensor code = encoder->forward(batch);
        const at::Tensor tied = torch::linear(decoder->forward(code), parameters[0]);
        torch::mse_loss(tied, batch).backward();
      };
      if (is_distributed) {
        optimizer->zero_grad();
        pass();
        optimizer->step();
      } else {
        inner.zero_grad();
        pass();
        inner.step();
      }
    }
    return torch::cat({flat(*encoder), flat(*decoder)});
  };
  EXPECT_LT((train(true) - train(false)).abs().max().item<double>(), 1e-12);
}

/// Trains a GAN with two optimizers; the generator's backward() passes through the discriminator.
at::Tensor train_gan(const Runtime& runtime, bool is_distributed, bool uses_model_zero_grad) {
  torch::nn::Sequential generator = make_mlp(torch::kFloat64, 4, 2);
  torch::nn::Sequential discriminator = make_mlp(torch::kFloat64, 3, 2);
  const auto generator_inner = make_optimizer(Algorithm::Adam, generator->parameters());
  const auto discriminator_inner = make_optimizer(Algorithm::Adam, discriminator->parameters());
  std::optional<DistributedOptimizer> distributed_g;
  std::optional<DistributedOptimizer> distributed_d;
  if (is_distributed) {
    distributed_g.emplace(*generator_inner, *generator);
    distributed_d.emplace(*discriminator_inner, *discriminator);
  }
  const auto zero = [&](torch::nn::Sequential& model, auto& inner, auto& distributed) {
    if (!is_distributed) {
      inner->zero_grad();
    } else if (uses_model_zero_grad) {
      model->zero_grad();
    } else {
      distributed->zero_grad();
    }
  };
  const auto step = [&](auto& inner, auto& distributed) {
    if (is_distributed) {
      distributed->step();
    } else {
      inner->step();
    }
  };
  const std::int64_t rows = is_distributed ? 12 / runtime.size() : 12;
  const std::int64_t first = is_distributed ? runtime.rank() * rows : 0;
  for (int i = 0; i < 8; ++i) {
    const at::Tensor real = batch_rows(i, first, rows, 3, torch::kFloat64);
    const at::Tensor noise = batch_rows(i + 100, first, rows, 4, torch::kFloat64);
    zero(discriminator, discriminator_inner, distributed_d);
    const at::Tensor fake = generator->forward(noise);
    ((discriminator->forward(real) - 1).square().mean() +
     discriminator->forward(fake.detach()).square().mean())
        .backward();
    step(discriminator_inner, distributed_d);
    zero(generator, generator_inner, distributed_g);
    (discriminator->forward(fake) - 1).square().mean().backward();
    step(generator_inner, distributed_g);
  }
  return torch::cat({flat(*generator), flat(*discriminator)});
}

TEST_F(OptimizerParametersTest, Gan_TrainsAsInOneProcess) {
  const at::Tensor alone = train_gan(runtime_, false, false);
  for (const bool uses_model_zero_grad : {false, true}) {
    const at::Tensor together = train_gan(runtime_, true, uses_model_zero_grad);
    EXPECT_LT((together - alone).abs().max().item<double>(), 1e-9) << uses_model_zero_grad;
  }
}

}  // namespace kolo::test::optimizer_parameters_test

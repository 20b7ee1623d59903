// The option `fused`: LibTorch's kernels instead of the wrapped optimizer's own step.
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "train/scaling.hpp"

namespace kolo::test::fused_test {

using namespace torch::optim;

constexpr int kSteps = 50;

std::vector<OptimizerCase> cases() {
  return {
      {"sgd", maker<SGD>(SGDOptions(0.05).weight_decay(0.01))},
      {"sgd_dampening",
       maker<SGD>(SGDOptions(0.05).momentum(0.9).weight_decay(0.01).dampening(0.1))},
      {"sgd_nesterov", maker<SGD>(SGDOptions(0.05).momentum(0.9).nesterov(true))},
      {"adam", maker<Adam>(AdamOptions(1e-2).eps(1e-4).weight_decay(0.01))},
      {"adam_amsgrad", maker<Adam>(AdamOptions(1e-2).eps(1e-4).amsgrad(true))},
      {"adamw", maker<AdamW>(AdamWOptions(1e-2).eps(1e-4).betas({0.8, 0.99}))},
      {"adamw_amsgrad", maker<AdamW>(AdamWOptions(1e-2).eps(1e-4).amsgrad(true))},
  };
}

DistributedOptimizer::Options fused(DistributedOptimizer::Options options) {
  options.fused = true;
  return options;
}

class FusedTest : public GradScalerTest, public testing::WithParamInterface<OptimizerCase> {
 protected:
  /// Takes steps `begin` to `end` with a decreasing learning rate.
  void steps(torch::nn::Sequential& model, DistributedOptimizer& optimizer, int begin, int end) {
    for (int step = begin; step < end; ++step) {
      optimizer.param_groups()[0].options().set_lr(0.02 / (1 + step));
      optimizer.zero_grad();
      loss(model, step).backward();
      optimizer.step();
    }
  }

  at::Tensor train(const DistributedOptimizer::Options& options) {
    torch::nn::Sequential model = make_mlp(torch::kFloat32);
    const auto inner = GetParam().make(model->parameters());
    DistributedOptimizer optimizer(*inner, *model, options);
    steps(model, optimizer, 0, kSteps);
    return flat(*model);
  }
};

INSTANTIATE_TEST_SUITE_P(Optimizers, FusedTest, testing::ValuesIn(cases()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(FusedTest, FusedStep_IsCloseToTheOrdinaryOneAndTheSameInAllModes) {
  const at::Tensor ordinary = train(with(Shard::None));
  const at::Tensor whole = train(fused(with(Shard::None)));
  EXPECT_LT(largest_difference(whole, ordinary), 1e-6);
  for (const DistributedOptimizer::Options& options : all_layouts()) {
    const at::Tensor sharded = train(fused(options));
    if (options.shard_scope == ShardScope::World) expect_alike(sharded, whole);
    EXPECT_LT(largest_difference(sharded, whole), 1e-5);
    expect_equal_on_all_ranks(sharded);
  }
}

TEST_P(FusedTest, State_IsThatOfTheOrdinaryStep) {
  const at::Tensor ordinary = train(with(Shard::None));
  for (const bool is_fused_first : {true, false}) {
    torch::nn::Sequential model = make_mlp(torch::kFloat32);
    const auto inner = GetParam().make(model->parameters());
    for (const bool is_first : {true, false}) {
      auto options = with(Shard::None);
      options.fused = is_first == is_fused_first;
      DistributedOptimizer optimizer(*inner, *model, options);
      steps(model, optimizer, is_first ? 0 : kSteps / 2, is_first ? kSteps / 2 : kSteps);
    }
    EXPECT_LT(largest_difference(flat(*model), ordinary), 1e-6);
  }
}

TEST_P(FusedTest, SeveralTypesAndGroups_StepAndUnusedParametersStay) {
  for (const Shard shard : all_modes()) {
    const auto train = [&](bool is_fused) {
      Parameters parameters;
      for (const auto type : {torch::kFloat32, torch::kFloat64, torch::kFloat32}) {
        parameters.push_back(batch_rows(1, 5, 7, 11, type).requires_grad_());
      }
      const auto inner = GetParam().make({parameters[0], parameters[1]});
      inner->add_param_group(OptimizerParamGroup({parameters[2]}));
      inner->param_groups()[1].options().set_lr(0.003);
      auto options = with(shard);
      options.fused = is_fused;
      DistributedOptimizer optimizer(
          *inner, {{"float", parameters[0]}, {"double", parameters[1]}, {"other", parameters[2]}},
          options);
      for (int step = 0; step < 6; ++step) {
        optimizer.zero_grad();
        at::Tensor loss = at::zeros({}, torch::kFloat64);
        for (std::size_t i = 0; i < 3; ++i) {
          if (step == 0 && i == 0) continue;  // so that their step counts differ
          loss = loss + (parameters[i].to(torch::kFloat64) * (rank() + 1.0)).pow(2).mean();
        }
        loss.backward();
        optimizer.step();
      }
      return parameters;
    };
    const Parameters ordinary = train(false);
    const Parameters stepped = train(true);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(stepped[i].scalar_type(), ordinary[i].scalar_type());
      EXPECT_LT(largest_difference(stepped[i].detach(), ordinary[i].detach()),
                i == 1 ? 1e-13 : 1e-6);
    }
  }
}

using FusedErrorsTest = GradScalerTest;

class OwnAdam final : public Adam {
 public:
  using Adam::Adam;
};

TEST_F(FusedErrorsTest, OtherClasses_AreRefusedByName) {
  for (const Shard shard : all_modes()) {
    torch::nn::Sequential model = make_mlp(torch::kFloat32);
    RMSprop rms_prop(model->parameters());
    expect_refused([&] { DistributedOptimizer optimizer(rms_prop, *model, fused(with(shard))); },
                   "not torch::optim::RMSprop");
    OwnAdam derived(model->parameters());
    expect_refused([&] { DistributedOptimizer optimizer(derived, *model, fused(with(shard))); },
                   "OwnAdam");
  }
}

TEST_F(FusedErrorsTest, RanksThatDiffer_AreNamed) {
  if (size() == 1) GTEST_SKIP() << "one rank has nobody to differ from";
  torch::nn::Sequential model = make_mlp(torch::kFloat32);
  SGD sgd(model->parameters(), 0.1);
  auto options = with(Shard::None);
  options.fused = is_last();
  expect_refused<MismatchError>([&] { DistributedOptimizer optimizer(sgd, *model, options); },
                                "fused");
}

TEST_F(FusedErrorsTest, NonContiguousParameters_AreRefused) {
  const at::Tensor weight = torch::ones({3, 4}).t().requires_grad_();
  SGD sgd({weight}, 0.1);
  expect_refused(
      [&] { DistributedOptimizer optimizer(sgd, {{"weight", weight}}, fused(with(Shard::None))); },
      "parameter 'weight': it is not contiguous");
}

TEST_F(FusedErrorsTest, SparseGradients_AreRefused) {
  torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(8, 3).sparse(true));
  SGD sgd(embedding->parameters(), 0.1);
  DistributedOptimizer optimizer(sgd, *embedding, fused(with(Shard::None)));
  const auto backward = [&] { embedding->forward(torch::tensor({rank(), 5})).sum().backward(); };
  backward();
  optimizer.step();  // learns which gradients are sparse
  backward();
  expect_refused([&] { optimizer.step(); }, "sparse_as_dense");
}

/// Kernels do not check sizes: they would read and write out of bounds if a program's state has
/// another shape or type.
TEST_F(FusedErrorsTest, StateOfAnotherShapeOrType_IsRefused) {
  const at::Tensor weight = torch::ones({64, 64}).requires_grad_();
  const auto step = [&](Optimizer& inner, const auto& spoil) {
    DistributedOptimizer optimizer(inner, {{"weight", weight}}, fused(with(Shard::None)));
    for (const bool is_spoilt : {false, true}) {
      optimizer.zero_grad();
      (weight * (rank() + 1.0)).sum().backward();
      const at::Tensor before = weight.detach().clone();
      if (!is_spoilt) {
        optimizer.step();
        continue;
      }
      const auto* const counted =
          dynamic_cast<AdamWParamState*>(inner.state().at(weight.unsafeGetTensorImpl()).get());
      spoil(*inner.state().at(weight.unsafeGetTensorImpl()));
      expect_refused([&] { optimizer.step(); }, "the optimizer's state");
      EXPECT_TRUE(torch::equal(weight, before));
      if (counted != nullptr) {
        EXPECT_EQ(counted->step(), 1);  // the refused step is not counted
      }
    }
  };
  const at::Tensor wrong[] = {torch::zeros({1}), torch::zeros({64, 64}, torch::kFloat64),
                              torch::zeros({64, 128}).slice(1, 0, 128, 2), at::Tensor()};
  for (const at::Tensor& tensor : wrong) {
    for (const int field : {0, 1, 2}) {
      AdamW adamw({weight}, AdamWOptions(1e-2).amsgrad(true));
      step(adamw, [&](OptimizerParamState& state) {
        auto& all = static_cast<AdamWParamState&>(state);
        at::Tensor* const fields[] = {&all.exp_avg(), &all.exp_avg_sq(), &all.max_exp_avg_sq()};
        *fields[field] = tensor;
      });
    }
    Adam adam({weight}, AdamOptions(1e-2).amsgrad(true));
    step(adam, [&](OptimizerParamState& state) {
      static_cast<AdamParamState&>(state).max_exp_avg_sq(tensor);
    });
    SGD sgd({weight}, SGDOptions(1e-2).momentum(0.9));
    step(sgd, [&](OptimizerParamState& state) {
      static_cast<SGDParamState&>(state).momentum_buffer(tensor);
    });
  }
}

TEST_F(FusedErrorsTest, SparseGradient_PreventsTheStepOfOtherParameters) {
  const at::Tensor weight = torch::ones({3}).requires_grad_();
  torch::nn::Embedding rows(torch::nn::EmbeddingOptions(4, 2).sparse(true));
  AdamW adamw({weight, rows->weight}, AdamWOptions(1e-2));
  DistributedOptimizer optimizer(adamw, {{"weight", weight}, {"rows", rows->weight}},
                                 fused(with(Shard::None)));
  const auto backward = [&] {
    optimizer.zero_grad();
    (weight.sum() + rows(torch::tensor({1})).sum()).backward();
  };
  backward();
  optimizer.step();  // learns which gradients are sparse
  const at::Tensor before = weight.detach().clone();
  backward();
  expect_refused([&] { optimizer.step(); }, "there is a sparse one");
  EXPECT_TRUE(torch::equal(weight, before));
  EXPECT_EQ(static_cast<AdamWParamState&>(*adamw.state().at(weight.unsafeGetTensorImpl())).step(),
            1);
}

}  // namespace kolo::test::fused_test

// The interface of the wrapped optimizer, as the training layer uses it.
#include <cstdint>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/error.hpp"
#include "support/errors.hpp"
#include "train/wrapped/libtorch_optimizer.hpp"

namespace kolo::test::wrapped_optimizer_test {

using train::KnownField;
using train::LibTorchOptimizer;
using train::StateField;
using Parameters = std::vector<at::Tensor>;
using Make = std::unique_ptr<torch::optim::Optimizer> (*)(const Parameters&);

struct Case {
  const char* name;
  Make make;
  std::vector<std::string> known;  // fields in order; optional ones end in '?'
};
void PrintTo(const Case& which, std::ostream* stream) { *stream << which.name; }

class WrappedOptimizerTest : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(
    , WrappedOptimizerTest,
    testing::Values(Case{"sgd",
                         [](const Parameters& all) -> std::unique_ptr<torch::optim::Optimizer> {
                           return std::make_unique<torch::optim::SGD>(
                               all, torch::optim::SGDOptions(0.1).momentum(0.9));
                         },
                         {"momentum_buffer"}},
                    Case{"adam",
                         [](const Parameters& all) -> std::unique_ptr<torch::optim::Optimizer> {
                           return std::make_unique<torch::optim::Adam>(
                               all, torch::optim::AdamOptions(0.1).amsgrad(true));
                         },
                         {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq?"}},
                    Case{"adamw",
                         [](const Parameters& all) -> std::unique_ptr<torch::optim::Optimizer> {
                           return std::make_unique<torch::optim::AdamW>(
                               all, torch::optim::AdamWOptions(0.1));
                         },
                         {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq?"}},
                    Case{"rmsprop",
                         [](const Parameters& all) -> std::unique_ptr<torch::optim::Optimizer> {
                           return std::make_unique<torch::optim::RMSprop>(
                               all, torch::optim::RMSpropOptions(0.1).centered(true));
                         },
                         {"step", "square_avg", "momentum_buffer?", "grad_avg?"}},
                    Case{"adagrad",
                         [](const Parameters& all) -> std::unique_ptr<torch::optim::Optimizer> {
                           return std::make_unique<torch::optim::Adagrad>(
                               all, torch::optim::AdagradOptions(0.1));
                         },
                         {"step", "sum"}}),
    [](const auto& which) { return which.param.name; });

/// A parameter with the values 1 … n and the gradient 0.5.
at::Tensor parameter(std::int64_t n) {
  at::Tensor values = torch::arange(1.0, static_cast<double>(n) + 1.0).requires_grad_();
  values.mutable_grad() = torch::full({n}, 0.5);
  return values;
}

void expect_equal(const std::vector<StateField>& own, const std::vector<StateField>& expected) {
  ASSERT_EQ(own.size(), expected.size());
  for (std::size_t i = 0; i < own.size(); ++i) {
    EXPECT_EQ(own[i].name, expected[i].name);
    if (expected[i].value.isTensor()) {
      EXPECT_TRUE(torch::equal(own[i].value.toTensor(), expected[i].value.toTensor()));
    } else {
      EXPECT_EQ(own[i].value, expected[i].value) << own[i].name;
    }
  }
}

TEST_P(WrappedOptimizerTest, KnownFields_AreThoseOfTheClass) {
  const auto inner = GetParam().make({parameter(3)});
  std::vector<std::string> known;
  for (const KnownField& field : LibTorchOptimizer(*inner, false).known_fields()) {
    known.push_back(field.name + (field.is_optional ? "?" : ""));
    EXPECT_EQ(field.is_tensor, field.name != "step");
  }
  EXPECT_EQ(known, GetParam().known);
  EXPECT_TRUE(LibTorchOptimizer(*inner, false).steps_leaves_separately());
}

TEST_P(WrappedOptimizerTest, StateMovesToAnotherLeaf_WhichThenStepsAlike) {
  const at::Tensor first = parameter(5);
  const auto inner = GetParam().make({first});
  LibTorchOptimizer optimizer(*inner, false);
  const bool has_initial_state = std::string(GetParam().name) == "adagrad";
  EXPECT_EQ(optimizer.has_state(first), has_initial_state);
  EXPECT_EQ(optimizer.state(first).has_value(), has_initial_state);
  for (int step = 0; step < 3; ++step) optimizer.step(nullptr);

  const at::Tensor second = first.detach().clone().requires_grad_();
  second.mutable_grad() = first.grad().clone();
  std::vector<StateField> fields = *optimizer.state(first);
  EXPECT_EQ(optimizer.count_accepted(fields), fields.size());
  for (StateField& field : fields) {
    if (field.value.isTensor()) field.value = field.value.toTensor().clone();
  }
  optimizer.set_state(second, fields);
  expect_equal(*optimizer.state(second), *optimizer.state(first));
  optimizer.step_leaves({{second}});
  optimizer.step(nullptr);
  EXPECT_TRUE(torch::equal(second, first)) << second << first;
  expect_equal(*optimizer.state(second), *optimizer.state(first));

  optimizer.erase_state(second);
  EXPECT_FALSE(optimizer.has_state(second));
  EXPECT_TRUE(optimizer.has_state(first));
}

TEST_P(WrappedOptimizerTest, RefuseOwnSave_LastsAsLongAsTheWrapper) {
  const auto inner = GetParam().make({parameter(2)});
  inner->step();
  std::ostringstream stream;
  {
    LibTorchOptimizer optimizer(*inner, false);
    torch::save(*inner, stream);
    optimizer.refuse_own_save();
    EXPECT_THROW(torch::save(*inner, stream), InvalidArgument);
  }
  torch::save(*inner, stream);
  EXPECT_EQ(inner->state().size(), 1U);
}

/// A group of one parameter with this learning rate.
torch::optim::OptimizerParamGroup group_of(const at::Tensor& member, double lr) {
  return {{member}, std::make_unique<torch::optim::SGDOptions>(lr)};
}

TEST(StepLeavesTest, UsesTheOptionsOfItsGroup_AndLeavesTheGroupsAsTheyWere) {
  const at::Tensor a = parameter(2);
  const at::Tensor b = parameter(2);
  torch::optim::SGD inner({group_of(a, 0.1), group_of(b, 4.0)}, torch::optim::SGDOptions(0.1));
  LibTorchOptimizer optimizer(inner, false);
  const at::Tensor leaf = parameter(3);
  optimizer.step_leaves({{}, {leaf}});
  EXPECT_TRUE(torch::equal(leaf, torch::arange(1.0, 4.0) - 2.0)) << leaf;
  EXPECT_TRUE(torch::equal(a, torch::arange(1.0, 3.0)));
  EXPECT_TRUE(torch::equal(b, torch::arange(1.0, 3.0)));
  ASSERT_EQ(optimizer.groups().size(), 2U);
  EXPECT_TRUE(optimizer.groups()[0].params().at(0).is_same(a));
  EXPECT_TRUE(optimizer.groups()[1].params().at(0).is_same(b));
}

/// Fails at every step.
class Failing : public torch::optim::SGD {
 public:
  using SGD::SGD;
  at::Tensor step(LossClosure) override { throw BackendError("no step"); }
};

TEST(StepLeavesTest, AfterAnError_TheGroupsHoldTheirParameters) {
  const at::Tensor member = parameter(2);
  Failing inner({member}, torch::optim::SGDOptions(0.1));
  LibTorchOptimizer optimizer(inner, false);
  EXPECT_THROW(optimizer.step_leaves({{parameter(3)}}), BackendError);
  EXPECT_FALSE(optimizer.steps_leaves_separately()) << "its step() may count";
  EXPECT_TRUE(optimizer.groups()[0].params().at(0).is_same(member));
}

TEST(WrappedProblemTest, WhatCannotBeWrapped_IsNamedWithAWayOut) {
  torch::optim::LBFGS lbfgs({parameter(2)});
  expect_contains(LibTorchOptimizer(lbfgs, false).problem({}), "LBFGS");
  torch::optim::RMSprop rmsprop({parameter(2)});
  EXPECT_EQ(LibTorchOptimizer(rmsprop, false).problem({}), "");
  expect_contains(LibTorchOptimizer(rmsprop, true).problem({}), "not torch::optim::RMSprop");
  Failing derived({parameter(2)}, torch::optim::SGDOptions(0.1));
  EXPECT_NE(LibTorchOptimizer(derived, true).problem({}), "") << "may step in its own way";
}

TEST(FusedStepTest, AClosureIsEvaluatedOnceWithGradientsEnabled) {
  const at::Tensor member = parameter(2);
  torch::optim::Adam inner({member}, torch::optim::AdamOptions(0.1));
  LibTorchOptimizer optimizer(inner, true);
  int calls = 0;
  const at::NoGradGuard no_grad;
  const at::Tensor loss = optimizer.step([&] {
    ++calls;
    EXPECT_TRUE(at::GradMode::is_enabled());
    return torch::full({}, 7.0);
  });
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(loss.item<double>(), 7.0);
  EXPECT_LT(member[0].item<double>(), 1.0);
}

}  // namespace kolo::test::wrapped_optimizer_test

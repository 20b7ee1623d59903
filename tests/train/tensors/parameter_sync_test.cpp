#include "kolo/torch/parameter_sync.hpp"

#include <functional>
#include <memory>
#include <ostream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/error.hpp"
#include "kolo/runtime.hpp"
#include "kolo/torch/tensor_collectives.hpp"
#include "runtime/runtimes.hpp"
#include "support/mpi/variants.hpp"
#include "train/models.hpp"
#include "train/sharding.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test::parameter_sync_test {

const AlsoIn also_in({"alone", "groups"});

class ParameterSyncTest : public TrainingTest {};

TEST_F(ParameterSyncTest, ParametersAndBuffers_AreBroadcast) {
  torch::manual_seed(static_cast<std::uint64_t>(rank()));
  torch::nn::Sequential model(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4));
  model->forward(torch::randn({8, 3}));  // running statistics now differ
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

/// An optimizer, with functions that compare a parameter's state and options.
struct StateCase {
  const char* name;
  MakeOptimizer make;
  std::function<bool(const torch::optim::OptimizerParamState&,
                     const torch::optim::OptimizerParamState&)>
      has_equal_state;
  std::function<bool(const torch::optim::OptimizerOptions&, const torch::optim::OptimizerOptions&)>
      has_equal_options;
};
void PrintTo(const StateCase& which, std::ostream* stream) { *stream << which.name; }

template <class Class, class State, class Options>
StateCase state_case(const char* name, Options options) {
  return {name, maker<Class>(options),
          [](const auto& a, const auto& b) {  // LibTorch's operators compare all fields
            return static_cast<const State&>(a) == static_cast<const State&>(b);
          },
          [](const auto& a, const auto& b) {
            return static_cast<const Options&>(a) == static_cast<const Options&>(b);
          }};
}

std::vector<StateCase> state_cases() {
  using namespace torch::optim;
  return {
      state_case<SGD, SGDParamState>(
          "sgd", SGDOptions(0.05).momentum(0.9).weight_decay(0.01).nesterov(true)),
      state_case<Adam, AdamParamState>(
          "adam", AdamOptions(1e-2).betas({0.8, 0.95}).eps(1e-4).weight_decay(0.01).amsgrad(true)),
      state_case<AdamW, AdamWParamState>("adamw", AdamWOptions(1e-2).eps(1e-4).amsgrad(true)),
      state_case<RMSprop, RMSpropParamState>(
          "rmsprop", RMSpropOptions(1e-3).alpha(0.9).momentum(0.9).eps(1e-4).centered(true)),
      state_case<Adagrad, AdagradParamState>(
          "adagrad", AdagradOptions(1e-2).lr_decay(0.01).initial_accumulator_value(0.3)),
  };
}

void take_three_steps(torch::nn::Sequential& model, Optimizer& optimizer) {
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    loss_of(model, batch_rows(step, 0, 4, 9, torch::kFloat32)).backward();
    optimizer.step();
  }
  optimizer.param_groups()[0].options().set_lr(0.125);
}

class StateSyncTest : public ParameterSyncTest, public testing::WithParamInterface<StateCase> {};

INSTANTIATE_TEST_SUITE_P(Optimizers, StateSyncTest, testing::ValuesIn(state_cases()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(StateSyncTest, AllFields_AreBroadcastToRanksThatHaveNone) {
  const int root = size() - 1;
  torch::nn::Sequential model = make_mlp(torch::kFloat32);
  const auto optimizer = GetParam().make(model->parameters());
  if (rank() == root) take_three_steps(model, *optimizer);
  broadcast_parameters(*model, root);
  const at::Tensor before = flat(*model);
  broadcast_optimizer_state(*optimizer, root);
  EXPECT_TRUE(torch::equal(flat(*model), before));

  torch::nn::Sequential twin = make_mlp(torch::kFloat32);  // equals the root's, but is made here
  const auto expected = GetParam().make(twin->parameters());
  take_three_steps(twin, *expected);
  EXPECT_TRUE(torch::equal(before, flat(*twin)));
  EXPECT_TRUE(GetParam().has_equal_options(optimizer->param_groups()[0].options(),
                                           expected->param_groups()[0].options()));
  ASSERT_EQ(optimizer->state().size(), model->parameters().size());
  for (std::size_t i = 0; i < model->parameters().size(); ++i) {
    const auto state_of = [i](Optimizer& of, torch::nn::Sequential& its) -> const auto& {
      return *of.state().at(its->parameters()[i].unsafeGetTensorImpl());
    };
    EXPECT_TRUE(GetParam().has_equal_state(state_of(*optimizer, model), state_of(*expected, twin)))
        << "parameter " << i;
  }
}

TEST_F(ParameterSyncTest, Tensors_AreBroadcastByNameOrByOrder) {
  const int root = size() - 1;
  const auto make = [&](double factor) {
    return torch::arange(4, torch::kFloat64) * factor + rank();
  };
  const auto expected = [&](double factor) {
    return torch::arange(4, torch::kFloat64) * factor + root;
  };
  const at::Tensor a = make(1);
  const at::Tensor b = make(2);
  // Names matter, not positions. A tensor may have two names.
  using Named = std::vector<std::pair<std::string, at::Tensor>>;
  broadcast_parameters(rank() == root ? Named{{"a", a}, {"b", b}, {"a too", a}}
                                      : Named{{"b", b}, {"a", a}, {"a too", a}},
                       root);
  EXPECT_TRUE(torch::equal(a, expected(1)));
  EXPECT_TRUE(torch::equal(b, expected(2)));

  const std::vector<at::Tensor> tensors{make(3), make(4).to(torch::kInt64), make(5)};
  broadcast_parameters(tensors, root);
  EXPECT_TRUE(torch::equal(tensors[0], expected(3)));
  EXPECT_TRUE(torch::equal(tensors[1], expected(4).to(torch::kInt64)));
  EXPECT_TRUE(torch::equal(tensors[2], expected(5)));
}

TEST_F(ParameterSyncTest, OptimizerStateThatNoRankHas_IsBroadcast) {
  const at::Tensor weight = torch::ones({3}, torch::requires_grad());
  torch::optim::SGD optimizer({weight},
                              torch::optim::SGDOptions(0.5).momentum(0.9).weight_decay(0.1));
  optimizer.param_groups()[0].options().set_lr(0.5 + rank());
  broadcast_optimizer_state(optimizer, 0);
  EXPECT_TRUE(optimizer.state().empty());
  EXPECT_FALSE(weight.grad().defined());
  EXPECT_TRUE(torch::equal(weight.detach(), torch::ones({3})));  // no decay
  EXPECT_DOUBLE_EQ(optimizer.param_groups()[0].options().get_lr(), 0.5);
}

TEST_F(ParameterSyncTest, StateOfSomeParametersAndAllOptions_AreBroadcast) {
  using torch::optim::SGDOptions;
  const auto weight = [] { return torch::ones({3}, torch::requires_grad()); };
  const std::vector<at::Tensor> weights{weight(), weight().requires_grad_(false), weight()};
  torch::optim::SGD optimizer(
      {torch::optim::OptimizerParamGroup({weights[0], weights[1]},
                                         std::make_unique<SGDOptions>(0.1)),
       torch::optim::OptimizerParamGroup({weights[2]}, std::make_unique<SGDOptions>(0.2))},
      SGDOptions(0.3));
  const auto options_of = [&](std::size_t group) -> SGDOptions& {
    return static_cast<SGDOptions&>(optimizer.param_groups()[group].options());
  };
  const int root = size() - 1;
  for (const std::size_t group : {0U, 1U}) {
    const double different = static_cast<double>(group) + rank() / 8.0;
    options_of(group).momentum(0.25 + different / 8).weight_decay(different);
    options_of(group).nesterov(rank() == root && group == 1);
  }
  (weights[0].sum() + weights[2].sum() * (rank() + 1)).backward();
  optimizer.step();
  broadcast_optimizer_state(optimizer, root);
  for (const std::size_t group : {0U, 1U}) {
    const double of_root = static_cast<double>(group) + root / 8.0;
    EXPECT_DOUBLE_EQ(options_of(group).momentum(), 0.25 + of_root / 8) << group;
    EXPECT_DOUBLE_EQ(options_of(group).weight_decay(), of_root) << group;
    EXPECT_EQ(options_of(group).nesterov(), group == 1) << group;
  }
  EXPECT_EQ(optimizer.state().size(), 2U);  // a parameter without gradients has no state
  const auto& state = static_cast<const torch::optim::SGDParamState&>(
      *optimizer.state().at(weights[2].unsafeGetTensorImpl()));
  // The gradient, and the decay of a weight of ones.
  EXPECT_TRUE(
      torch::allclose(state.momentum_buffer(), torch::full({3}, root + 1 + (1 + root / 8.0))));
}

/// Like LBFGS with undefined tensors in its state.
class Unwritable : public torch::optim::SGD {
 public:
  using SGD::SGD;
  void save(torch::serialize::OutputArchive&) const override { throw std::runtime_error("no ink"); }
};

/// All ranks get an error with this text. Afterwards they can broadcast another optimizer's state.
void expect_sync_refused(Optimizer& optimizer, const Runtime& runtime, const std::string& text) {
  const int root = runtime.size() - 1;
  expect_contains(
      text_thrown_by<InvalidArgument>([&] { broadcast_optimizer_state(optimizer, root); }), text);
  torch::optim::SGD another({torch::ones({2})}, 0.5 + runtime.rank());
  broadcast_optimizer_state(another, root);
  EXPECT_DOUBLE_EQ(another.param_groups()[0].options().get_lr(), 0.5 + root);
}

TEST_F(ParameterSyncTest, StateThatTheRootCannotWrite_IsAnErrorOnAll) {
  Unwritable unwritable({torch::ones({3})}, 0.1);
  expect_sync_refused(unwritable, runtime_,
                      "on rank " + std::to_string(size() - 1) +
                          ": the optimizer's state cannot be written: no ink");
}

TEST_F(ParameterSyncTest, StateThatARankCannotRead_IsAnErrorOnAll) {
  if (size() == 1) GTEST_SKIP() << "one rank has nobody's state to read";
  std::vector<torch::optim::OptimizerParamGroup> groups{
      torch::optim::OptimizerParamGroup({torch::ones({2})})};
  if (rank() == 0) groups.emplace_back(std::vector<at::Tensor>{torch::ones({3})});
  torch::optim::SGD uneven(groups, 0.1);
  expect_sync_refused(uneven, runtime_,
                      "on rank 0: the optimizer's state cannot take the root's: ");
}

}  // namespace kolo::test::parameter_sync_test

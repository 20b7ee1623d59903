// Objects of the training layer that are used after their Runtime has been destroyed.
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/error.hpp"
#include "kolo/extras/sync_batch_norm.hpp"
#include "kolo/runtime.hpp"
#include "kolo/torch/distributed_optimizer.hpp"
#include "kolo/torch/tensor_collectives.hpp"
#include "support/errors.hpp"
#include "support/mpi/mpi_ranks.hpp"
#include "train/models.hpp"
#include "train/sharding.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test::ended_runtime_test {

void expect_refused(const std::string& what, const std::function<void()>& use) {
  const std::string text = text_thrown_by<ShutdownError>(use);
  EXPECT_NE(text.find("process set world"), std::string::npos) << what << ": " << text;
}

/// Each test destroys the Runtime.
class EndedRuntimeTest : public testing::Test {
 protected:
  std::optional<Runtime> runtime_{std::in_place, in_test_world(config_from_environment())};
};

class EndedRuntimeOfOptimizerTest : public EndedRuntimeTest,
                                    public testing::WithParamInterface<Shard> {};

TEST_P(EndedRuntimeOfOptimizerTest, EachUse_IsRefused) {
  torch::nn::Sequential model = make_mlp(torch::kFloat32);
  DistributedOptimizer optimizer(torch::optim::SGD(model->parameters(), 0.1), *model,
                                 with(GetParam()));
  const auto backward = [&](int step) {
    loss_of(model, batch_rows(step, 4 * runtime_->rank(), 4, 9, torch::kFloat32)).backward();
  };
  for (int step = 0; step < 2; ++step) {
    backward(step);
    optimizer.step();
  }
  const at::Tensor rows = batch_rows(0, 0, 4, 9, torch::kFloat32);
  const bool needs_gather = GetParam() == Shard::Full && gathers_on_use();
  runtime_.reset();
  if (needs_gather) {
    EXPECT_THROW(loss_of(model, rows), c10::Error);  // LibTorch's own error, with Kolo's text
  }
  expect_refused("backward() and step()", [&] {
    if (!needs_gather) loss_of(model, rows).backward();
    optimizer.step();
  });
  expect_refused("join()", [&] { optimizer.join(); });
  expect_refused("save()", [&] { optimizer.save("unused"); });
  expect_refused("load()", [&] { optimizer.load("unused"); });
  if (GetParam() == Shard::Full) return;  // which has no replicas to check
  expect_refused("check_replicas()", [&] { optimizer.check_replicas(); });
}

TEST_P(EndedRuntimeOfOptimizerTest, ZeroGrad_DropsThisRanksGradients) {
  using Pass = std::function<void(DistributedOptimizer&, torch::nn::Sequential&, at::Tensor)>;
  const std::vector<Pass> passes{
      [](auto&, auto& model, const at::Tensor& rows) { loss_of(model, rows).backward(); },
      [](auto& optimizer, auto& model, const at::Tensor& rows) {
        optimizer.backward(loss_of(model, rows), rows.size(0));
      },
      // Some buckets are not submitted.
      [](auto&, auto& model, const at::Tensor& rows) {
        model[0]->template as<torch::nn::Linear>()->forward(rows).sum().backward();
      },
  };
  for (std::size_t i = 0; i < passes.size(); ++i) {
    SCOPED_TRACE("pass " + std::to_string(i));
    if (!runtime_) runtime_.emplace(in_test_world(config_from_environment()));
    torch::nn::Sequential model = make_mlp(torch::kFloat32);
    DistributedOptimizer optimizer(torch::optim::SGD(model->parameters(), 0.1), *model,
                                   with(GetParam()));
    const at::Tensor rows = batch_rows(0, 4 * runtime_->rank(), 4, 9, torch::kFloat32);
    loss_of(model, rows).backward();
    optimizer.step();
    optimizer.zero_grad();
    passes[i](optimizer, model, rows);
    runtime_.reset();
    for (int repetition = 0; repetition < 2; ++repetition) {
      EXPECT_NO_THROW(optimizer.zero_grad());
      for (const at::Tensor& parameter : model->parameters()) {
        EXPECT_FALSE(parameter.grad().defined());
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllModes, EndedRuntimeOfOptimizerTest, testing::ValuesIn(all_modes()),
                         [](const auto& each) { return std::string(name_of(each.param)); });

/// The sum over nodes cannot begin either: that error must not hide the first one.
TEST(EndedRuntimeOfNodesTest, Step_ThrowsTheFirstError) {
  Config config = config_from_environment();
  config.fake_nodes = MpiRanks::instance().size();  // each rank has replicas of its shards
  std::optional<Runtime> runtime(std::in_place, in_test_world(config));
  if (runtime->size() == 1) GTEST_SKIP() << "one rank has no replicas";
  const bool submits = runtime->rank() == 0;
  const at::Tensor weights = torch::ones({4}, torch::requires_grad());
  torch::optim::SGD inner({weights}, 0.1);
  DistributedOptimizer optimizer(inner, {{"weights", weights}},
                                 {.shard = Shard::Gradients, .shard_scope = ShardScope::Node});
  weights.sum().backward();
  optimizer.step();  // shards
  optimizer.zero_grad();
  if (submits) weights.sum().backward();
  runtime.reset();
  if (!submits) return;
  const std::string text = text_thrown_by<ShutdownError>([&] { optimizer.step(); });
  expect_contains(text, "before all ranks had submitted it");
}

TEST_F(EndedRuntimeTest, Graph_IsRefused) {
  const at::Tensor input = at::ones({3}, at::kFloat).requires_grad_();
  const at::Tensor sum = allreduce(input, {.op = ReduceOp::Sum}).sum();
  const at::Tensor rows = allgather(input).sum();
  runtime_.reset();
  expect_refused("allreduce", [&] { sum.backward(); });
  expect_refused("allgather", [&] { rows.backward(); });
}

TEST_F(EndedRuntimeTest, SyncBatchNorm_IsRefused) {
  SyncBatchNorm norm(torch::nn::BatchNormOptions(3));
  const at::Tensor input = at::arange(12, at::kFloat).reshape({4, 3}).requires_grad_();
  const at::Tensor output = norm->forward(input).square().sum();
  runtime_.reset();
  expect_refused("backward()", [&] { output.backward(); });
  expect_refused("forward()", [&] { norm->forward(input); });
}

}  // namespace kolo::test::ended_runtime_test

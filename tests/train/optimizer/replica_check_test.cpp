// Parameters that differ between ranks are detected, and named on all ranks.
#include <cstdint>
#include <string>
#include <utility>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/error.hpp"
#include "kolo/torch/distributed_optimizer.hpp"
#include "train/models.hpp"
#include "train/sharding.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test::replica_check_test {

constexpr std::int64_t kWidth = 5;
constexpr const char* kNeedsRanks = "one rank has no replica to differ from";

class ReplicaCheckTest : public TrainingTest {
 protected:
  struct Training {
    explicit Training(DistributedOptimizer::Options options)
        : model(make_mlp(torch::kFloat32, kWidth, 2)),
          inner(model->parameters(), torch::optim::AdamWOptions(1e-2)),
          optimizer(inner, *model, std::move(options)) {}

    void step() {
      optimizer.zero_grad();
      const int rank = Runtime::current().rank();
      loss_of(model, batch_rows(0, 10 * rank, 3, kWidth, torch::kFloat32)).backward();
      optimizer.clip_grad_norm_(0.1);
      optimizer.step();
    }

    torch::nn::Sequential model;
    torch::optim::AdamW inner;
    DistributedOptimizer optimizer;
  };

  static void write(const at::Tensor& parameter) {
    const at::NoGradGuard no_grad;
    at::Tensor(parameter).view(-1)[0] += 0.25;
  }
  std::string others() const {
    std::string text = size() == 2 ? "rank" : "ranks";
    for (int each = 0; each < size() - 1; ++each) text += " " + std::to_string(each);
    return text;
  }
};

TEST_F(ReplicaCheckTest, WrittenParameter_IsNamedOnAllRanksWithItsRanksAndStep) {
  if (size() == 1) GTEST_SKIP() << kNeedsRanks;
  Training training(with(Shard::None));
  training.step();
  training.optimizer.check_replicas();
  if (is_last()) write(training.model->parameters()[2]);
  const std::string last = "rank " + std::to_string(size() - 1);
  for (const int step : {2, 3}) {
    training.step();
    expect_refused<MismatchError>([&] { training.optimizer.check_replicas(); },
                                  "after step " + std::to_string(step) +
                                      ", 1 of 6 parameters differ between ranks: '2.weight' (" +
                                      others() + "; " + last + ");");
  }
}

TEST_F(ReplicaCheckTest, Parameters_AreComparedInAllModesWithReplicas) {
  if (size() == 1) GTEST_SKIP() << kNeedsRanks;
  for (const Shard shard : {Shard::None, Shard::Optimizer, Shard::Gradients}) {
    Training training(with(shard));
    training.step();
    training.optimizer.check_replicas();
    if (rank() == 0) {
      for (const at::Tensor& parameter : training.model->parameters()) write(parameter);
    }
    expect_refused<MismatchError>(
        [&] { training.optimizer.check_replicas(); },
        "6 of 6 parameters differ between ranks: '0.weight' (rank 0; rank");
    expect_refused<MismatchError>([&] { training.optimizer.check_replicas(); },
                                  ") and others; ranks in one list");
  }
}

TEST_F(ReplicaCheckTest, ForgottenBroadcast_IsFoundAfterTheFirstStep) {
  if (size() == 1) GTEST_SKIP() << kNeedsRanks;
  Training training(with(Shard::None));
  for (const at::Tensor& parameter : training.model->parameters()) {
    const at::NoGradGuard no_grad;
    at::Tensor(parameter).add_(rank());
  }
  training.step();
  expect_refused<MismatchError>([&] { training.optimizer.check_replicas(); },
                                "Call broadcast_parameters(model, 0)");
}

TEST_F(ReplicaCheckTest, FrozenParameter_IsComparedToo) {
  if (size() == 1) GTEST_SKIP() << kNeedsRanks;
  torch::nn::Sequential model = make_mlp(torch::kFloat32, kWidth, 2);
  model->parameters()[1].requires_grad_(false);
  if (rank() == 0) write(model->parameters()[1]);
  torch::optim::SGD inner(model->parameters(), 0.1);
  DistributedOptimizer optimizer(inner, *model, with(Shard::None));
  expect_refused<MismatchError>([&] { optimizer.check_replicas(); },
                                "1 of 6 parameters differ between ranks: '0.bias' (rank 0; rank");
}

TEST_F(ReplicaCheckTest, LocalSteps_DifferUntilTheirAverage) {
  if (size() == 1) GTEST_SKIP() << kNeedsRanks;
  DistributedOptimizer::Options options = with(Shard::None);
  options.local_sgd = {.period = 2, .start_step = 1};
  Training training(options);
  for (int step = 0; step < 5; ++step) {
    training.step();
    if (step % 2 == 0) {
      training.optimizer.check_replicas();
    } else {
      expect_refused<MismatchError>([&] { training.optimizer.check_replicas(); }, "6 of 6");
    }
  }
}

}  // namespace kolo::test::replica_check_test

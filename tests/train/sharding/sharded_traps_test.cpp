// Loops and models that break other sharded optimizers train here as without sharding.
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "kolo/process_set.hpp"
#include "support/mpi/test_world.hpp"
#include "support/mpi/variants.hpp"
#include "train/sharding.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test::sharded_traps_test {

const AlsoIn also_in({"uneven", "messages"});

constexpr std::int64_t kWidth = 9;

class ShardedTrapsTest : public TrainingTest {};

/// One process normalizes the rows that it uses before it uses them.
TEST_F(ShardedTrapsTest, RowsThatAModuleNormalizes_AreNormalizedOnAllRanksInstead) {
  constexpr double kMaxNorm = 0.5;
  constexpr std::int64_t kRows = 5;
  const auto make = [](std::optional<double> max_norm) {
    torch::nn::EmbeddingOptions options(kRows, 3);
    torch::nn::Sequential model{torch::nn::Embedding(options.max_norm(max_norm))};
    model->to(torch::kFloat64);
    const at::NoGradGuard no_grad;
    const at::Tensor values = torch::arange(kRows * 3, torch::kFloat64).view({kRows, 3});
    model->parameters()[0].copy_(values.add(1).cos());
    return model;
  };
  // Row `rank` and a common one; in later steps, others.
  const auto loss = [](torch::nn::Sequential& model, int rank, int step) {
    const at::Tensor rows = torch::tensor({(rank + step) % kRows, kRows - 1});
    return (model->forward(rows) * torch::arange(6, torch::kFloat64).view({2, 3})).sum();
  };
  torch::nn::Sequential whole = make(kMaxNorm);
  torch::optim::SGD alone(whole->parameters(), 0.1);
  for (int step = 0; step < 4; ++step) {
    alone.zero_grad();
    for (int each = 0; each < size(); ++each) (loss(whole, each, step) / size()).backward();
    alone.step();
  }
  const auto normalize = [](torch::nn::Sequential& model) {
    const at::NoGradGuard no_grad;
    model->parameters()[0].renorm_(2, 0, kMaxNorm);
  };
  normalize(whole);
  for (const Shard mode : all_modes()) {
    if (size() > 1) {
      torch::nn::Sequential refused = make(kMaxNorm);
      torch::optim::SGD inner(refused->parameters(), 0.1);
      expect_refused([&] { DistributedOptimizer(inner, *refused, with(mode)); },
                     "'0.weight' belongs to a module with max_norm");
      torch::nn::Sequential unseen = make(kMaxNorm);
      torch::optim::SGD by_name(unseen->parameters(), 0.1);
      DistributedOptimizer by_names(by_name, {{"rows", unseen->parameters()[0]}},
                                    with(Shard::Full));
      const auto step = [&] {
        loss(unseen, rank(), 0).backward();
        by_names.step();
      };
      expect_contains(text_thrown_by<InvalidArgument>(step),
                      "parameter 'rows' was written outside step()");
    }
    torch::nn::Sequential model = make(std::nullopt);
    torch::optim::SGD inner(model->parameters(), 0.1);
    DistributedOptimizer optimizer(inner, *model, with(mode));
    for (int step = 0; step < 4; ++step) {
      optimizer.full_parameters([&] { normalize(model); });
      optimizer.zero_grad();
      loss(model, rank(), step).backward();
      optimizer.step();
    }
    optimizer.full_parameters([&] { normalize(model); });
    EXPECT_LT(largest_difference(flat(*model), flat(*whole)), 1e-6) << kolo::name_of(mode);
  }
}

/// An embedding that shares its weight with the output, a layer used twice, and one with buffers.
struct Tricky : torch::nn::Module {
  Tricky() {
    torch::manual_seed(3);
    embedding = register_module("embedding", torch::nn::Embedding(11, 6));
    twice = register_module("twice", torch::nn::Linear(6, 6));
    norm = register_module("norm", torch::nn::BatchNorm1d(6));
  }
  at::Tensor loss(int step, int rank) {
    const at::Tensor tokens = (torch::arange(8) * (rank + 2) + step).remainder(11);
    at::Tensor x = torch::tanh(twice->forward(embedding->forward(tokens)));
    x = norm->forward(torch::tanh(twice->forward(x)));
    return torch::cross_entropy_loss(torch::linear(x, embedding->weight),
                                     (tokens + 1).remainder(11));
  }
  torch::nn::Embedding embedding{nullptr};
  torch::nn::Linear twice{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};

struct Trained {
  at::Tensor parameters;
  at::Tensor buffers;
  std::vector<double> losses;
};

/// Runs every second pass under no_sync, with its forward pass inside or outside.
Trained train_tricky(const Runtime& runtime, Shard mode, bool forward_is_inside) {
  Tricky model;
  torch::optim::AdamW inner(model.parameters(), torch::optim::AdamWOptions(1e-2).eps(1e-4));
  DistributedOptimizer optimizer(inner, model, with(mode));
  Trained trained;
  for (int step = 0; step < 6; ++step) {
    optimizer.zero_grad();
    at::Tensor loss = forward_is_inside ? at::Tensor() : model.loss(2 * step, runtime.rank());
    {
      const auto guard = optimizer.no_sync();
      if (forward_is_inside) loss = model.loss(2 * step, runtime.rank());
      loss.backward();
    }
    trained.losses.push_back(loss.item<double>());
    loss = model.loss(2 * step + 1, runtime.rank());
    loss.backward();
    trained.losses.push_back(loss.item<double>());
    optimizer.step();
  }
  trained.parameters = flat(model);
  trained.buffers = torch::cat({model.norm->running_mean, model.norm->running_var});
  return trained;
}

TEST_F(ShardedTrapsTest, TrickyModels_TrainAsWithoutShardingToTheLastLoss) {
  const Trained whole = train_tricky(runtime_, Shard::None, true);
  for (const Shard mode : all_modes()) {
    for (const bool forward_is_inside : {true, false}) {
      const Trained trained = train_tricky(runtime_, mode, forward_is_inside);
      expect_alike(trained.parameters, whole.parameters);
      expect_alike(trained.buffers, whole.buffers);
      expect_equal_on_all_ranks(trained.parameters);
      for (std::size_t i = 0; i < whole.losses.size(); ++i) {
        if (is_rank_ordered()) {
          EXPECT_EQ(trained.losses[i], whole.losses[i]) << i;
        } else {
          EXPECT_NEAR(trained.losses[i], whole.losses[i], 1e-5) << i;
        }
      }
    }
  }
}

TEST_F(ShardedTrapsTest, Buffers_AreEachRanksOwn) {
  const at::Tensor means = train_tricky(runtime_, Shard::Optimizer, true).buffers;
  const bool differ = !torch::equal(allreduce(means, {.op = ReduceOp::Max}),
                                    allreduce(means, {.op = ReduceOp::Min}));
  EXPECT_EQ(differ, size() > 1);
}

TEST_F(ShardedTrapsTest, SteadySteps_MoveNoMoreThanTheyMustAndNegotiateNothing) {
  if (!is_rank_ordered()) {
    GTEST_SKIP() << "bytes are those of shared memory; messages and nodes move others";
  }
  for (const Shard mode : sharded_modes()) {
    torch::nn::Sequential model = make_mlp(torch::kFloat32, 256);
    const auto inner = make_optimizer(Algorithm::Adam, model->parameters());
    DistributedOptimizer optimizer(*inner, *model, {.shard = mode});
    constexpr int kCounted = 10;
    ProcessSet::Metrics before;
    ProcessSet::Metrics after;
    for (int step = 0; step < 6 + kCounted; ++step) {
      if (step == 5) before = runtime_.world().metrics();
      // Read before the last step, which no rank can finish without this one, so no later traffic
      // is counted.
      if (step == 5 + kCounted) after = runtime_.world().metrics();
      optimizer.zero_grad();
      loss_of(model, batch_rows(step, 3 * rank(), 3, 256, torch::kFloat32)).backward();
      optimizer.step();
    }
    EXPECT_EQ(after.negotiations, before.negotiations);
    const double model_bytes = 4.0 * static_cast<double>(flat(*model).numel());
    const bool is_full = mode == Shard::Full;  // gathers nothing, but pads shards to pages
    const double expected = (is_full ? 1.0 : 2.0) * model_bytes * (size() - 1) / size();
    const double moved = static_cast<double>(after.bytes_sent - before.bytes_sent) / kCounted;
    EXPECT_LE(moved, (is_full ? 1.1 : 1.01) * expected);
    EXPECT_GE(moved, 0.99 * expected);
  }
}

/// The last rank joins first; the others then call different functions.
TEST_F(ShardedTrapsTest, CommandsThatDifferWhileOneHasJoined_AreAnErrorOnAll) {
  if (size() < 3) GTEST_SKIP() << "of two ranks, the one that has not joined differs from nobody";
  for (const Shard mode : {Shard::Optimizer, Shard::Gradients}) {
    torch::nn::Sequential model = make_mlp(torch::kFloat32);
    torch::optim::SGD inner(model->parameters(), 0.1);
    DistributedOptimizer optimizer(inner, *model, with(mode));
    const std::string text = text_thrown_by<MismatchError>([&] {
      if (is_last()) {
        optimizer.join();
        return;
      }
      loss_of(model, batch_rows(0, rank(), 3, kWidth, torch::kFloat32)).backward();
      if (rank() == 0) optimizer.clip_grad_norm_(0.5);
      optimizer.step();
    });
    expect_contains(text, "while some ranks have joined, rank 1 called step() where");
    expect_contains(text, "rank 0 called clip_grad_norm_(). All must");
  }
}

/// One rank is so late that the others' reductions time out.
class LateRankTest : public testing::Test {
 protected:
  static Config with_short_timeout() {
    Config config = config_from_environment();
    config.timeout = std::chrono::seconds(1);
    return config;
  }
  Runtime runtime_{in_test_world(with_short_timeout())};
};

TEST_F(LateRankTest, FailedReduction_EndsTheStepAndTheNextOneWorks) {
  if (runtime_.size() == 1) GTEST_SKIP() << "one rank waits for nobody";
  for (const Accumulation accumulation : {Accumulation::Local, Accumulation::Reduced}) {
    torch::nn::Sequential model = make_mlp(torch::kFloat32);
    const auto inner = make_optimizer(Algorithm::Adam, model->parameters());
    DistributedOptimizer::Options options = with(Shard::Gradients);
    options.accumulation = accumulation;
    DistributedOptimizer optimizer(*inner, *model, options);
    const auto backward = [&](int step) {
      loss_of(model, batch_rows(step, 3 * runtime_.rank(), 3, kWidth, torch::kFloat32)).backward();
    };
    const auto expect_steps = [&](int first) {
      for (int step = first; step < first + 3; ++step) {
        optimizer.zero_grad();
        backward(step);
        optimizer.step();
      }
    };
    expect_steps(0);
    const at::Tensor before = flat(*model);
    for (const bool clips : {false, true}) {
      optimizer.zero_grad();
      if (runtime_.rank() == runtime_.size() - 1) {
        std::this_thread::sleep_for(std::chrono::seconds(2));
      }
      const std::string text = text_thrown_by<TimeoutError>([&] {
        backward(3);
        clips ? static_cast<void>(optimizer.clip_grad_norm_(1.0))
              : static_cast<void>(optimizer.step());
      });
      // Of a bucket; or, if these ranks were late, too, of where they meet after it.
      const std::string late = "rank " + std::to_string(runtime_.size() - 1);
      expect_contains(text, late + " had not submitted it");
      EXPECT_TRUE(torch::equal(flat(*model), before));
      optimizer.zero_grad();
      barrier({.timeout = std::chrono::seconds(60)});  // the other ranks are ahead by the timeouts
    }
    expect_steps(4);
    EXPECT_FALSE(torch::equal(flat(*model), before));
    expect_equal_on_all_ranks(flat(*model));
  }
}

}  // namespace kolo::test::sharded_traps_test

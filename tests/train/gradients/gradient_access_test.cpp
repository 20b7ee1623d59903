// Gradients are neither readable nor writable during their reduction, but before and after it.
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/error.hpp"
#include "kolo/torch/distributed_optimizer.hpp"
#include "kolo/torch/tensor_collectives.hpp"
#include "train/models.hpp"
#include "train/sharding.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test::gradient_access_test {

class GradientAccessTest : public TrainingTest {
 protected:
  struct Training {
    explicit Training(DistributedOptimizer::Options options)
        : model(make_mlp(torch::kFloat32, 5, 2)),
          inner(model->parameters(), 0.1),
          optimizer(inner, *model, std::move(options)) {}
    explicit Training(Shard shard) : Training(with(shard)) {}

    void backward(int step) {
      optimizer.zero_grad();
      const int rank = Runtime::current().rank();
      loss_of(model, batch_rows(step, 10 * rank, 3, 5, torch::kFloat32)).backward();
    }
    void step(int step) {
      backward(step);
      optimizer.step();
    }
    at::Tensor gradient() { return model->parameters().front().grad(); }

    torch::nn::Sequential model;
    torch::optim::SGD inner;
    DistributedOptimizer optimizer;
  };

  static constexpr const char* kRefusal =
      "gradient of parameter '0.weight' is being reduced over the ranks";
  /// The modes in which parameters keep their gradients during the reduction.
  static std::vector<Shard> modes() { return {Shard::None, Shard::Optimizer}; }
};

TEST_F(GradientAccessTest, ReadsAndWritesOfAnyKind_AreRefusedDuringTheReduction) {
  using Access = std::function<void(Training&)>;
  const std::vector<Access> accesses = {
      [](Training& t) { torch::nn::utils::clip_grad_norm_(t.model->parameters(), 0.1); },
      [](Training& t) { torch::nn::utils::clip_grad_value_(t.model->parameters(), 0.1); },
      [](Training& t) { t.gradient().mul_(0.5); },
      [](Training& t) { t.gradient().detach().view(-1)[0] = 1.0; },
      [](Training& t) { t.gradient().data().norm(); },
      [](Training& t) { t.inner.zero_grad(/*set_to_none=*/false); },
      [](Training& t) { t.inner.step(); },
  };
  for (const Shard shard : modes()) {
    for (std::size_t i = 0; i < accesses.size(); ++i) {
      SCOPED_TRACE("access " + std::to_string(i) + ", " + std::string(name_of(shard)));
      Training training(shard);
      for (int step = 0; step < 3; ++step) {
        training.backward(step);
        expect_refused<c10::Error>([&] { accesses[i](training); }, kRefusal);
        training.optimizer.step();
      }
    }
  }
}

TEST_F(GradientAccessTest, ReadsInFlight_AreAllowed_ButNotWrites) {
  for (const Shard shard : modes()) {
    DistributedOptimizer::Options options = with(shard);
    options.reads_in_flight = true;
    Training training(options);
    Training guarded(shard);
    for (int step = 0; step < 3; ++step) {
      training.backward(step);
      EXPECT_TRUE(training.gradient().isfinite().all().item<bool>());
      EXPECT_THROW(training.gradient().mul_(0.5), c10::Error);
      training.optimizer.step();
      guarded.step(step);
    }
    EXPECT_TRUE(torch::equal(flat(*training.model), flat(*guarded.model)));
    if (shard == Shard::None) training.gradient().mul_(0.5);
  }
}

TEST_F(GradientAccessTest, RefusedAccess_LeavesTrainingAsItWas) {
  for (const Shard shard : modes()) {
    Training undisturbed(shard);
    Training disturbed(shard);
    for (int step = 0; step < 3; ++step) {
      undisturbed.step(step);
      disturbed.backward(step);
      EXPECT_THROW(torch::nn::utils::clip_grad_norm_(disturbed.model->parameters(), 0.1),
                   c10::Error);
      disturbed.optimizer.step();
    }
    EXPECT_TRUE(torch::equal(flat(*undisturbed.model), flat(*disturbed.model)));
  }
}

TEST_F(GradientAccessTest, AfterSynchronize_GradientsMayBeChanged) {
  Training own(Shard::None);
  Training changed(Shard::None);
  for (int step = 0; step < 3; ++step) {
    own.backward(step);
    own.optimizer.clip_grad_norm_(0.1);
    own.optimizer.step();
    changed.backward(step);
    changed.optimizer.synchronize();
    torch::nn::utils::clip_grad_norm_(changed.model->parameters(), 0.1);
    changed.optimizer.step();
    EXPECT_GT(changed.gradient().norm().item<double>(), 0.0);
  }
  EXPECT_LT(largest_difference(flat(*own.model), flat(*changed.model)), 1e-6);
}

TEST_F(GradientAccessTest, GradientsThatNobodyReduces_MayBeRead) {
  Training training(Shard::None);
  {
    const auto guard = training.optimizer.no_sync();
    training.backward(0);
    EXPECT_GT(training.gradient().norm().item<double>(), 0.0);
  }
  training.step(1);
  const at::Tensor kept = training.gradient();
  training.backward(2);
  EXPECT_THROW(kept.sum(), c10::Error);  // the new gradient uses its memory
  training.optimizer.synchronize();
  EXPECT_TRUE(torch::equal(kept, training.gradient()));
}

TEST_F(GradientAccessTest, FailedReduction_GivesAccessBack) {
  Training training(Shard::None);
  training.optimizer.register_bucket_hook([](GradientBucket bucket) {
    return allreduce_async_(bucket.gradients,
                            {.name = bucket.name, .process_set = bucket.process_set})
        .then([](at::Tensor) -> at::Tensor { throw InvalidArgument("no gradient for you"); });
  });
  training.backward(0);
  expect_refused([&] { training.optimizer.step(); }, "no gradient for you");
  training.optimizer.register_bucket_hook({});
  training.step(1);
  EXPECT_GT(training.gradient().norm().item<double>(), 0.0);
}

TEST_F(GradientAccessTest, OptimizerThatEndsDuringTheReduction_LeavesNoGradients) {
  torch::nn::Sequential model = make_mlp(torch::kFloat32, 5, 2);
  torch::optim::SGD inner(model->parameters(), 0.1);
  const auto backward = [&] {
    loss_of(model, batch_rows(0, 10 * rank(), 3, 5, torch::kFloat32)).backward();
  };
  {
    const DistributedOptimizer optimizer(inner, *model, with(Shard::None));
    backward();
  }
  for (const at::Tensor& parameter : model->parameters()) EXPECT_FALSE(parameter.grad().defined());
  backward();
  EXPECT_GT(model->parameters().front().grad().norm().item<double>(), 0.0);
}

/// Gradients of the first step are made dense; later ones are not in buckets.
TEST_F(GradientAccessTest, SparseGradients_AreRefusedToo) {
  using Access = std::function<void(at::Tensor)>;
  const std::vector<Access> accesses = {
      [](at::Tensor table) { table.mutable_grad().mul_(100.0); },
      [](at::Tensor table) { table.grad().norm(); },
      [](at::Tensor table) { torch::nn::utils::clip_grad_norm_(table, 0.1); },
  };
  for (const bool is_coalesced : {false, true}) {
    const at::Tensor table = torch::zeros({6, 2}, torch::requires_grad());
    if (is_coalesced) table.register_hook([](const at::Tensor& own) { return own.coalesce(); });
    torch::optim::SGD inner({table}, 1.0);
    DistributedOptimizer optimizer(inner, {{"table", table}});
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      table.detach().zero_();
      const at::Tensor rows = torch::tensor({rank(), 5, rank()});
      torch::embedding(table, rows, -1, false, /*sparse=*/true).sum().backward();
      for (const Access& access : accesses) {
        expect_refused<c10::Error>([&] { access(table); },
                                   "gradient of parameter 'table' is being reduced over the ranks");
      }
      optimizer.synchronize();
      EXPECT_EQ(table.grad().is_sparse(), step > 0);
      table.mutable_grad().mul_(2.0);
      optimizer.step();
      at::Tensor expected = torch::zeros({6, 2});
      expected.narrow(0, 0, size()).fill_(-4.0 / size());
      expected[5] -= 2.0;
      EXPECT_TRUE(torch::allclose(table, expected)) << step << ": " << table;
    }
  }
}

TEST_F(GradientAccessTest, Hook_MayUseItsViewsThroughout) {
  Training training(Shard::None);
  training.optimizer.register_bucket_hook([](GradientBucket bucket) {
    return allreduce_async_(bucket.gradients,
                            {.name = bucket.name, .process_set = bucket.process_set})
        .then([views = bucket.views](at::Tensor reduced) {
          for (const at::Tensor& view : views) at::Tensor(view).fill_(0.25);
          return reduced;
        });
  });
  training.step(0);
  for (const at::Tensor& parameter : training.model->parameters()) {
    EXPECT_TRUE(torch::equal(parameter.grad(), torch::full_like(parameter, 0.25)));
  }
}

}  // namespace kolo::test::gradient_access_test

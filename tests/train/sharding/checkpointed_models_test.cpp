// Models train the same with and without activation checkpoints, in every mode.
#include <functional>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/torch/activation_checkpoint.hpp"
#include "kolo/torch/autocast.hpp"
#include "support/mpi/variants.hpp"
#include "train/sharding.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test::checkpointed_models_test {

const AlsoIn also_in({"messages", "nodes"});

constexpr std::int64_t kWidth = 9;
constexpr int kSteps = 6;

enum class Recomputation { None, Blocks, Nested };

/// Blocks with dropout, one of them called twice, and a weight that is used inside and outside a
/// block.
struct Model : torch::nn::Module {
  Model() {
    torch::manual_seed(7);
    for (int i = 0; i < 3; ++i) {
      blocks->push_back(torch::nn::Sequential(torch::nn::Linear(kWidth, kWidth), torch::nn::Tanh(),
                                              torch::nn::Dropout(0.3)));
    }
    register_module("blocks", blocks);
    shared = register_parameter("shared", torch::randn({kWidth, kWidth}) * 0.3);
  }
  at::Tensor forward(const at::Tensor& rows, Recomputation recomputation) {
    const auto call = [&](const std::function<at::Tensor(const at::Tensor&)>& function,
                          const at::Tensor& x, bool is_checkpoint) {
      return is_checkpoint ? checkpoint(function, x) : function(x);
    };
    const auto block = [&](std::size_t i) {
      return [this, i](const at::Tensor& x) {
        const at::Tensor y = blocks[i]->as<torch::nn::Sequential>()->forward(x);
        return i == 1 ? y.matmul(shared) : y;
      };
    };
    const bool recomputes = recomputation != Recomputation::None;
    const auto pair = [&, block](const at::Tensor& x) {
      return call(block(1), call(block(0), x, recomputes), recomputes);
    };
    at::Tensor x = call(pair, rows, recomputation == Recomputation::Nested);
    for (int time = 0; time < 2; ++time) x = call(block(2), x, recomputes);
    return x.matmul(shared);
  }
  torch::nn::ModuleList blocks;
  at::Tensor shared;
};

class CheckpointedModelsTest : public TrainingTest {
 protected:
  /// `last` is the random generator's position at the end.
  struct Trained {
    at::Tensor parameters, last;
  };
  Trained train(Shard mode, Recomputation recomputation, bool has_autocast, int passes = 1) const {
    Model model;
    const auto adamw = make_optimizer(Algorithm::AdamW, model.parameters());
    DistributedOptimizer::Options options = with(mode);
    options.backward_passes_per_step = passes;
    DistributedOptimizer optimizer(*adamw, model, options);
    torch::manual_seed(static_cast<std::uint64_t>(100 + rank()));
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      for (int pass = 0; pass < passes; ++pass) {
        at::Tensor y;
        {
          const Autocast autocast(at::kBFloat16, at::kCPU, has_autocast);
          const int which = passes * step + pass;
          y = model.forward(batch_rows(which, 3 * rank(), 3, kWidth, torch::kFloat32),
                            recomputation);
        }
        y.to(torch::kFloat32).pow(2).mean().backward();
      }
      optimizer.step();
    }
    return {flat(model), torch::rand({3})};
  }
};

TEST_F(CheckpointedModelsTest, Training_HasTheBitsOfTrainingWithout) {
  const Trained plain = train(Shard::None, Recomputation::None, false);
  for (const Shard mode : all_modes()) {
    for (const Recomputation recomputation : {Recomputation::Blocks, Recomputation::Nested}) {
      SCOPED_TRACE(name_of(mode));
      const Trained trained = train(mode, recomputation, false);
      expect_alike(trained.parameters, plain.parameters);
      expect_equal_on_all_ranks(trained.parameters);
      EXPECT_TRUE(torch::equal(trained.last, plain.last));
    }
  }
}

TEST_F(CheckpointedModelsTest, Autocast_IsThatOfTheForwardPass) {
  const Trained plain = train(Shard::None, Recomputation::None, true);
  const Trained whole = train(Shard::None, Recomputation::Nested, true);
  // Without a checkpoint, one cast accumulates the gradients of both uses, inside and outside the
  // block.
  EXPECT_LT(largest_difference(whole.parameters, plain.parameters), 5e-3);
  for (const Shard mode : sharded_modes()) {
    SCOPED_TRACE(name_of(mode));
    expect_alike(train(mode, Recomputation::Nested, true).parameters, whole.parameters);
  }
}

TEST_F(CheckpointedModelsTest, SeveralPasses_AddUp) {
  const Trained plain = train(Shard::None, Recomputation::None, false, 2);
  for (const Shard mode : all_modes()) {
    SCOPED_TRACE(name_of(mode));
    expect_alike(train(mode, Recomputation::Nested, false, 2).parameters, plain.parameters);
  }
}

}  // namespace kolo::test::checkpointed_models_test

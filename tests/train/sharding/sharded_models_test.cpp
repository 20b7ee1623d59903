// Models of many kinds train the same in every mode, and like one process with the rows of all
// ranks, whatever else the program does with the model meanwhile.
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/mpi/variants.hpp"
#include "train/sharding.hpp"
#include "train/trained_models.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test::sharded_models_test {

const AlsoIn also_in({"nodes"});

constexpr std::int64_t kRows = 4;  // of each rank in a step

/// Additional behaviour of a program.
struct Variation {
  int steps = 4;
  bool evaluates = false;      ///< before forward, before backward and before the update
  int forwards = 1;            ///< before one backward
  int passes = 1;              ///< of backward(), after the forward passes of all of them
  bool trains_a_part = false;  ///< in every second step one submodule alone
};

struct Trained {
  at::Tensor parameters;
  at::Tensor buffers;
  std::vector<double> evaluations;
};

/// The rows of the batch that a process trains with.
struct Share {
  int rank;
  int size;
  bool is_alone;  ///< one process has the rows of all ranks
};

at::Tensor training_loss(TrainedModel& model, int step, const Share& share,
                         const Variation& variation) {
  const auto loss_of = [&](std::int64_t first, std::int64_t rows) {
    if (variation.trains_a_part && step % 2 == 1) {
      return model.encoded(step, first, rows).pow(2).mean();
    }
    return model.loss(step, first, rows);
  };
  if (!share.is_alone) return loss_of(share.rank * kRows, kRows);
  if (model.buffers().empty()) return loss_of(0, share.size * kRows);
  at::Tensor sum = torch::zeros({});  // BatchNorm normalizes over one rank's rows
  for (int rank = 0; rank < share.size; ++rank) sum = sum + loss_of(rank * kRows, kRows);
  return sum / share.size;
}

void evaluate(TrainedModel& model, int step, std::vector<double>& evaluations) {
  model.eval();
  {
    const at::NoGradGuard no_grad;
    evaluations.push_back(model.loss(step + 100, 0, 3).item<double>());
  }
  {
    const c10::InferenceMode inference;
    evaluations.push_back(model.encoded(step + 200, 5, 2).sum().item<double>());
  }
  evaluations.push_back(model.loss(step, 1, 2).item<double>());  // builds a graph that is not used
  model.train();
}

/// `Optimizer` is Kolo's or LibTorch's.
template <class Optimizer>
Trained train(TrainedModel& model, Optimizer& optimizer, const Share& share,
              const Variation& variation) {
  std::vector<double> evaluations;
  const auto evaluate_if_wanted = [&](int step) {
    if (variation.evaluates) evaluate(model, step, evaluations);
  };
  for (int step = 0; step < variation.steps; ++step) {
    optimizer.zero_grad();
    evaluate_if_wanted(step);
    std::vector<at::Tensor> losses(static_cast<std::size_t>(variation.passes), torch::zeros({}));
    int which = step * variation.passes * variation.forwards;
    for (at::Tensor& loss : losses) {
      for (int i = 0; i < variation.forwards; ++i) {
        loss = loss + training_loss(model, which++, share, variation);
      }
    }
    evaluate_if_wanted(step);
    for (const at::Tensor& loss : losses) loss.backward();
    evaluate_if_wanted(step);
    optimizer.step();
  }
  evaluate(model, variation.steps, evaluations);
  std::vector<at::Tensor> buffers{torch::zeros({1})};
  for (const at::Tensor& buffer : model.buffers()) {
    buffers.push_back(buffer.to(torch::kFloat32).flatten());
  }
  return {flat(model), torch::cat(buffers), std::move(evaluations)};
}

std::unique_ptr<Optimizer> make_adamw(const TrainedModel& model) {
  return make_optimizer(Algorithm::AdamW, distinct_parameters(model));
}

class ShardedModelsTest : public TrainingTest, public testing::WithParamInterface<ModelCase> {
 protected:
  Trained train_in(Shard mode, const Variation& variation) const {
    const auto model = GetParam().make();
    const auto adamw = make_adamw(*model);
    DistributedOptimizer::Options options = with(mode);
    options.backward_passes_per_step = variation.passes;
    DistributedOptimizer optimizer(*adamw, *model, options);
    return train(*model, optimizer, {rank(), size(), false}, variation);
  }
  Trained train_alone(const Variation& variation) const {
    const auto model = GetParam().make();
    const auto adamw = make_adamw(*model);
    return train(*model, *adamw, {rank(), size(), true}, variation);
  }

  /// Expects equal bits in all modes, also in evaluations, and results close to those of one
  /// process with the rows of all ranks.
  void expect_all_modes_alike(const Variation& variation) const {
    const Trained alone = train_alone(variation);
    Trained whole;
    for (const Shard mode : all_modes()) {
      SCOPED_TRACE(name_of(mode));
      const Trained trained = train_in(mode, variation);
      if (mode == Shard::None) whole = trained;
      expect_alike(trained.parameters, whole.parameters);
      expect_alike(trained.buffers, whole.buffers);
      expect_alike(torch::tensor(trained.evaluations), torch::tensor(whole.evaluations));
      expect_equal_on_all_ranks(trained.parameters);
    }
    EXPECT_LT(largest_difference(whole.parameters, alone.parameters), 1e-5);
    if (GetParam().make()->buffers().empty()) {  // buffers differ between ranks
      EXPECT_LT(
          largest_difference(torch::tensor(whole.evaluations), torch::tensor(alone.evaluations)),
          1e-4);
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Models, ShardedModelsTest, testing::ValuesIn(model_cases()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(ShardedModelsTest, FiftySteps_EndAlike) { expect_all_modes_alike({.steps = 50}); }

TEST_P(ShardedModelsTest, SeveralForwardsBeforeOneBackward_AddUp) {
  expect_all_modes_alike({.forwards = 3});
}

TEST_P(ShardedModelsTest, ForwardPassesBeforeTheirBackwards_AddUp) {
  expect_all_modes_alike({.evaluates = true, .passes = 2});
}

TEST_P(ShardedModelsTest, SubmoduleCalledByItself_TrainsAlone) {
  expect_all_modes_alike({.evaluates = true, .trains_a_part = true});
}

}  // namespace kolo::test::sharded_models_test

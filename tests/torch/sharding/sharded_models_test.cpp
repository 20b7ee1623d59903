// Models of many kinds train alike in every mode, and as one process does with the rows of all
// ranks, whatever else the program does with the model meanwhile.
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "torch/sharding.hpp"
#include "torch/torch_fixture.hpp"
#include "torch/trained_models.hpp"

namespace kolo::test::sharded_models_test {

constexpr int kSteps = 8;
constexpr std::int64_t kRows = 4;  // of each rank in a step

/// What a program may do besides.
struct Variation {
  bool evaluates = false;      ///< before forward, before backward and before the update
  bool freezes = false;        ///< every third parameter, for the first half of the steps
  int forwards = 1;            ///< before one backward
  bool trains_a_part = false;  ///< in every second step one submodule alone
};

struct Trained {
  at::Tensor parameters;
  at::Tensor buffers;
  std::vector<double> evaluations;
};

/// Which rows of the batch a process trains with.
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
  at::Tensor sum = torch::zeros({});  // BatchNorm normalizes over the rows of one rank
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
  evaluations.push_back(model.loss(step, 1, 2).item<double>());  // a graph that nobody uses
  model.train();
}

/// `zero_grad` and `update` are the optimizer's, Kolo's or LibTorch's.
template <class Optimizer>
Trained train(TrainedModel& model, Optimizer& optimizer, const Share& share,
              const Variation& variation) {
  const Parameters parameters = distinct_parameters(model);
  std::vector<double> evaluations;
  const auto evaluate_if_wanted = [&](int step) {
    if (variation.evaluates) evaluate(model, step, evaluations);
  };
  for (int step = 0; step < kSteps; ++step) {
    if (variation.freezes && step == kSteps / 2) {
      for (at::Tensor parameter : parameters) parameter.requires_grad_();
    }
    optimizer.zero_grad();
    evaluate_if_wanted(step);
    at::Tensor loss = torch::zeros({});
    for (int i = 0; i < variation.forwards; ++i) {
      loss = loss + training_loss(model, variation.forwards * step + i, share, variation);
    }
    evaluate_if_wanted(step);
    loss.backward();
    evaluate_if_wanted(step);
    optimizer.step();
  }
  evaluate(model, kSteps, evaluations);
  std::vector<at::Tensor> buffers{torch::zeros({1})};
  for (const at::Tensor& buffer : model.buffers()) {
    buffers.push_back(buffer.to(torch::kFloat32).flatten());
  }
  return {flat(model), torch::cat(buffers), std::move(evaluations)};
}

std::unique_ptr<TrainedModel> make(const ModelCase& which, const Variation& variation) {
  std::unique_ptr<TrainedModel> model = which.make();
  if (!variation.freezes) return model;
  int index = 0;
  for (at::Tensor& parameter : distinct_parameters(*model)) {
    parameter.requires_grad_(index++ % 3 != 0);
  }
  return model;
}

std::unique_ptr<Optimizer> make_adamw(const TrainedModel& model) {
  return make_optimizer(Algorithm::AdamW, distinct_parameters(model));
}

class ShardedModelsTest : public TorchTest, public testing::WithParamInterface<ModelCase> {
 protected:
  Trained train_in(Shard mode, const Variation& variation) const {
    const auto model = make(GetParam(), variation);
    const auto adamw = make_adamw(*model);
    DistributedOptimizer optimizer(*adamw, *model, with(mode));
    return train(*model, optimizer, {rank(), size(), false}, variation);
  }
  Trained train_alone(const Variation& variation) const {
    const auto model = make(GetParam(), variation);
    const auto adamw = make_adamw(*model);
    return train(*model, *adamw, {rank(), size(), true}, variation);
  }

  /// Every mode has the bits of `expected`, and those of the first mode's evaluations.
  void expect_all_modes(const Variation& variation, const Trained& expected) {
    const Trained whole = train_in(Shard::None, variation);
    for (const Shard mode : all_modes()) {
      SCOPED_TRACE(name_of(mode));
      const Trained trained = train_in(mode, variation);
      expect_alike(trained.parameters, expected.parameters);
      expect_alike(trained.buffers, whole.buffers);
      expect_alike(torch::tensor(trained.evaluations), torch::tensor(whole.evaluations));
      expect_equal_on_all_ranks(trained.parameters);
    }
  }
  void expect_all_modes(const Variation& variation) {
    expect_all_modes(variation, train_in(Shard::None, variation));
  }
  void expect_one_process(const Variation& variation) const {
    const Trained together = train_in(Shard::None, variation);
    const Trained alone = train_alone(variation);
    EXPECT_LT(largest_difference(together.parameters, alone.parameters), 1e-5);
    if (GetParam().make()->buffers().empty()) {  // which are a rank's own
      EXPECT_LT(
          largest_difference(torch::tensor(together.evaluations), torch::tensor(alone.evaluations)),
          1e-4);
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Models, ShardedModelsTest, testing::ValuesIn(model_cases()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(ShardedModelsTest, Training_IsTheSameInAllModesAndAsOneProcess) {
  expect_all_modes({});
  expect_one_process({});
}

TEST_P(ShardedModelsTest, EvaluationWithinAStep_ChangesNothing) {
  const Variation variation{.evaluates = true};
  expect_all_modes(variation, train_in(Shard::None, {}));
  expect_one_process(variation);
}

TEST_P(ShardedModelsTest, FrozenParameters_StayAndThenTrain) {
  const Variation variation{.freezes = true};
  expect_all_modes(variation);
  expect_one_process(variation);
}

TEST_P(ShardedModelsTest, SeveralForwardsBeforeOneBackward_AddUp) {
  const Variation variation{.forwards = 3};
  expect_all_modes(variation);
  expect_one_process(variation);
}

TEST_P(ShardedModelsTest, SubmoduleCalledByItself_TrainsAlone) {
  const Variation variation{.evaluates = true, .trains_a_part = true};
  expect_all_modes(variation);
  expect_one_process(variation);
}

}  // namespace kolo::test::sharded_models_test

// What a GradScaler does to its scale, to gradients and to steps, whatever the ranks divide.
#include "kolo/grad_scaler.hpp"

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/autocast.hpp"
#include "kolo/distributed_optimizer.hpp"
#include "torch/sharding.hpp"
#include "torch/torch_fixture.hpp"

namespace kolo::test {
namespace {

constexpr std::int64_t kWidth = 9;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr Shard kAllModes[] = {Shard::None, Shard::Optimizer, Shard::Gradients};

class GradScalerTest : public TorchTest {
 protected:
  /// The loss of this rank's rows; on `culprit`, one element of one gradient is infinite.
  at::Tensor loss(torch::nn::Sequential& model, int step, int culprit = -1, std::size_t where = 0) {
    at::Tensor loss = loss_of(model, batch_rows(step, 3 * rank(), 3, kWidth, torch::kFloat32));
    if (rank() != culprit) return loss;
    const at::Tensor parameter = model->parameters()[where].flatten();
    return loss + parameter[parameter.numel() - 1] * kInfinity;
  }
};

/// One parameter of one element, which only one rank may own.
struct Single {
  explicit Single(DistributedOptimizer::Options options = {})
      : inner({weight}, torch::optim::SGDOptions(0.25)),
        optimizer(inner, {{"weight", weight}}, std::move(options)) {}
  void backward(GradScaler& scaler, float gradient) {
    scaler.scale((weight * gradient).sum()).backward();
  }
  double value() const { return weight.item<double>(); }
  at::Tensor weight = torch::ones({1}).requires_grad_();
  torch::optim::SGD inner;
  DistributedOptimizer optimizer;
};

// --- the scale ---

/// After each of `steps`: 8 times 4 to the number of whole runs of three good steps, by 4 for each
/// bad one.
std::vector<double> expected_scales(int steps, const std::set<int>& bad) {
  std::vector<double> scales;
  int exponent = 0;
  int first = 0;  // of the run of good steps
  for (int step = 0; step < steps; ++step) {
    int runs = (step + 1 - first) / 3;
    if (bad.contains(step)) {
      exponent += (step - first) / 3 - 1;
      first = step + 1;
      runs = 0;
    }
    scales.push_back(8.0 * std::pow(4.0, exponent + runs));
  }
  return scales;
}

TEST_F(GradScalerTest, ScaleFollowsItsClosedForm) {
  const std::set<int> bad{2, 7, 8, 15};
  const std::vector<double> expected = expected_scales(20, bad);
  for (const Shard shard : kAllModes) {
    Single model(with(shard));
    GradScaler scaler(
        {.init_scale = 8.0, .growth_factor = 4.0, .backoff_factor = 0.25, .growth_interval = 3});
    EXPECT_EQ(scaler.get_scale(), 8.0);
    for (int step = 0; step < 20; ++step) {
      model.optimizer.zero_grad();
      const bool is_bad = bad.contains(step) && step % size() == rank();
      model.backward(scaler, is_bad ? -kInfinity : 1.0f);
      EXPECT_EQ(scaler.step(model.optimizer), !bad.contains(step)) << step;
      scaler.update();
      EXPECT_EQ(scaler.get_scale(), expected[static_cast<std::size_t>(step)]) << step;
    }
    EXPECT_EQ(model.value(), 1.0 - 0.25 * 16);
  }
}

TEST_F(GradScalerTest, ScaleStaysWhereFloatsEnd) {
  for (const bool grows : {true, false}) {
    Single model;
    const double first = grows ? 0x1p127 : 0x1p-126;
    GradScaler scaler({.init_scale = first, .growth_interval = 1});
    model.backward(scaler, grows ? 0x1p-126f : kInfinity);
    EXPECT_EQ(scaler.step(model.optimizer), grows);
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), first);
    EXPECT_EQ(scaler.state().growth_tracker, 0);
  }
}

TEST_F(GradScalerTest, ANewScaleIsTakenAsItIs) {
  Single model;
  GradScaler scaler({.init_scale = 8.0, .growth_interval = 2});
  for (int step = 0; step < 2; ++step) {
    model.optimizer.zero_grad();
    model.backward(scaler, 1.0f);
    EXPECT_TRUE(scaler.step(model.optimizer));
    scaler.update(step == 0 ? std::nullopt : std::optional(3.0));
  }
  EXPECT_EQ(scaler.get_scale(), 3.0);
  EXPECT_EQ(scaler.state().growth_tracker, 1);  // as torch: the step counts for nothing
}

TEST_F(GradScalerTest, GoesOnFromItsState) {
  const auto run = [&](bool changes_hands) {
    Single model;
    GradScaler scaler({.init_scale = 8.0, .growth_interval = 3});
    std::vector<double> scales;
    for (int step = 0; step < 9; ++step) {
      if (changes_hands && step == 5) {
        const GradScaler::State state = scaler.state();
        EXPECT_EQ(state, (GradScaler::State{16.0, 2.0, 0.5, 3, 2}));
        scaler = GradScaler();
        scaler.set_state(state);
      }
      model.optimizer.zero_grad();
      model.backward(scaler, 1.0f);
      scaler.step(model.optimizer);
      scaler.update();
      scales.push_back(scaler.get_scale());
    }
    return scales;
  };
  EXPECT_EQ(run(true), run(false));
}

TEST_F(GradScalerTest, KeepsTheTypeOfALossThatCanHoldIt) {
  GradScaler scaler;
  const auto scaled = [&](at::ScalarType type, at::IntArrayRef shape) {
    return scaler.scale(torch::full(shape, 1.5, type));
  };
  EXPECT_EQ(scaled(at::kDouble, {}).scalar_type(), at::kDouble);
  EXPECT_EQ(scaled(at::kFloat, {2}).scalar_type(), at::kFloat);
  EXPECT_EQ(scaled(at::kBFloat16, {2}).scalar_type(), at::kBFloat16);
  EXPECT_EQ(scaled(at::kHalf, {}).item<double>(), 1.5 * 65536.0);  // not infinite
}

TEST_F(GradScalerTest, PassesThroughWhereItIsNotEnabled) {
  Single model;
  GradScaler scaler({.enabled = false});
  const at::Tensor loss = model.weight.sum();
  EXPECT_TRUE(scaler.scale(loss).is_same(loss));
  EXPECT_EQ(scaler.get_scale(), 1.0);
  loss.backward();
  scaler.unscale_(model.optimizer);
  EXPECT_EQ(model.weight.grad().item<double>(), 1.0);
  EXPECT_TRUE(scaler.step(model.optimizer));
  EXPECT_EQ(model.value(), 0.75);
  scaler.update();
  EXPECT_EQ(scaler.state(), GradScaler().state());
}

// --- gradients ---

TEST_F(GradScalerTest, UnscalesGradientsOfAllTypes) {
  std::vector<at::Tensor> parameters;
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    parameters.push_back(torch::ones({5}, type).requires_grad_());
  }
  torch::nn::Embedding rows(torch::nn::EmbeddingOptions(6, 2).sparse(true));
  parameters.push_back(rows->weight);
  torch::optim::SGD inner(parameters, 0.1);
  DistributedOptimizer optimizer(inner, DistributedOptimizer::NamedParameters{},
                                 {.op = ReduceOp::Sum, .shard = Shard::None});
  GradScaler scaler;
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    at::Tensor loss = rows->forward(torch::full({2}, 3, torch::kLong)).sum();
    for (std::size_t i = 0; i < 3; ++i) {
      loss = loss + (parameters[i] * torch::arange(5) * (rank() + 1)).sum().to(at::kFloat);
    }
    scaler.scale(loss).backward();
    scaler.unscale_(optimizer);
    const double ranks = size() * (size() + 1) / 2.0;
    for (std::size_t i = 0; i < 3; ++i) {
      expect_equal(parameters[i].grad(),
                   (torch::arange(5) * ranks).to(parameters[i].scalar_type()));
    }
    at::Tensor dense = torch::zeros({6, 2});
    dense[3] = 2.0 * size();
    const at::Tensor& of_rows = rows->weight.grad();
    EXPECT_EQ(of_rows.is_sparse(), step > 0);  // the first tells that it is
    expect_equal(step > 0 ? of_rows.to_dense() : of_rows, dense);
    EXPECT_TRUE(scaler.step(optimizer));
    scaler.update();
  }
}

TEST_F(GradScalerTest, TrainsBitByBitAsWithoutIt) {
  const auto train = [&](Shard shard, std::optional<GradScaler> scaler, double max_norm) {
    torch::nn::Sequential model = make_mlp(torch::kFloat32);
    const auto inner = make_optimizer(Algorithm::Adam, model->parameters());
    DistributedOptimizer optimizer(*inner, *model, with(shard));
    for (int step = 0; step < 12; ++step) {
      optimizer.zero_grad();
      const at::Tensor own = loss(model, step);
      (scaler ? scaler->scale(own) : own).backward();
      if (max_norm > 0.0) {
        if (scaler) scaler->unscale_(optimizer);
        optimizer.clip_grad_norm_(max_norm);
      }
      if (scaler) {
        EXPECT_TRUE(scaler->step(optimizer));
        scaler->update();
      } else {
        optimizer.step();
      }
    }
    if (scaler) {
      EXPECT_EQ(scaler->get_scale(), 65536.0 * 16);
    }
    return flat(*model);
  };
  for (const Shard shard : kAllModes) {
    for (const double max_norm : {0.0, 0.05}) {
      EXPECT_TRUE(torch::equal(train(shard, GradScaler({.growth_interval = 3}), max_norm),
                               train(shard, std::nullopt, max_norm)));
    }
  }
}

TEST_F(GradScalerTest, TellsWithTheNormInOneReduction) {
  const auto bytes_of_a_step = [&](Shard shard, bool scales, bool clips) {
    torch::nn::Sequential model = make_mlp(torch::kFloat32);
    torch::optim::SGD inner(model->parameters(), 0.1);
    DistributedOptimizer optimizer(inner, *model, with(shard));
    GradScaler scaler({.enabled = scales});
    std::uint64_t before = 0;
    for (int step = 0; step < 3; ++step) {
      before = runtime_.world().metrics().bytes_sent;
      optimizer.zero_grad();
      scaler.scale(loss(model, step)).backward();
      scaler.unscale_(optimizer);
      if (clips) optimizer.clip_grad_norm_(0.1);
      scaler.step(optimizer);
      scaler.update();
    }
    return runtime_.world().metrics().bytes_sent - before;
  };
  for (const Shard shard : kAllModes) {
    const std::uint64_t neither = bytes_of_a_step(shard, false, false);
    const std::uint64_t one = bytes_of_a_step(shard, true, false);
    EXPECT_EQ(bytes_of_a_step(shard, true, true), one);
    EXPECT_EQ(bytes_of_a_step(shard, false, true), shard == Shard::None ? neither : one);
    if (size() > 1) {
      EXPECT_GT(one, neither);
    }
  }
}

// --- steps that are skipped ---

struct Trained {
  at::Tensor parameters;
  std::set<std::int64_t> adam_steps;
};

/// Six steps of Adam, of which the first and the fourth overflow on `culprit`, or are left out.
class GradScalerSkipTest : public GradScalerTest {
 protected:
  Trained train(Shard shard, std::optional<int> culprit, std::size_t where, bool clips) {
    torch::nn::Sequential model = make_mlp(torch::kFloat32);
    torch::optim::Adam inner(model->parameters(), torch::optim::AdamOptions(1e-2).eps(1e-4));
    DistributedOptimizer optimizer(inner, *model, with(shard));
    GradScaler scaler;
    int skipped = 0;
    for (int step = 0; step < 6; ++step) {
      const bool is_bad = step % 3 == 0;
      if (is_bad && !culprit) continue;
      optimizer.zero_grad();
      const at::Tensor before = flat(*model);
      scaler.scale(loss(model, step, is_bad ? *culprit : -1, where)).backward();
      if (clips) {
        scaler.unscale_(optimizer);
        const double norm = optimizer.clip_grad_norm_(0.05);
        EXPECT_EQ(std::isfinite(norm), !is_bad);
      }
      EXPECT_EQ(scaler.step(optimizer), !is_bad) << step;
      EXPECT_EQ(torch::equal(flat(*model), before), is_bad) << step;
      scaler.update();
      skipped += is_bad;
      EXPECT_EQ(scaler.get_scale(), 65536.0 / (1 << skipped)) << step;
    }
    Trained result{flat(*model), {}};
    for (const auto& [key, state] : inner.state()) {
      result.adam_steps.insert(static_cast<torch::optim::AdamParamState&>(*state).step());
    }
    return result;
  }
};

TEST_F(GradScalerSkipTest, AllRanksSkipWhereOneOverflows) {
  for (const Shard shard : kAllModes) {
    for (const bool clips : {false, true}) {
      const Trained expected = train(shard, std::nullopt, 0, clips);
      for (int culprit = 0; culprit < size(); ++culprit) {
        for (const std::size_t where :
             {std::size_t{0}, std::size_t{9}}) {  // the first and the last parameter
          const Trained trained = train(shard, culprit, where, clips);
          expect_alike(trained.parameters, expected.parameters);
          EXPECT_EQ(trained.adam_steps, expected.adam_steps);
          if (shard == Shard::None) {
            EXPECT_EQ(trained.adam_steps, std::set<std::int64_t>{4});
          }
        }
      }
    }
  }
}

TEST_F(GradScalerTest, GradientsOfASkippedStepAreAsAfterAStep) {
  for (const Shard shard : kAllModes) {
    torch::nn::Sequential model = make_mlp(torch::kFloat32);
    torch::optim::SGD inner(model->parameters(), 0.1);
    DistributedOptimizer optimizer(inner, *model, with(shard));
    GradScaler scaler;
    for (int step = 0; step < 4; ++step) {
      const bool is_bad = step == 1;
      scaler.scale(loss(model, step, is_bad ? 0 : -1)).backward();
      EXPECT_EQ(scaler.step(optimizer), !is_bad) << step;
      scaler.update();
      const at::Tensor& gradient = model->parameters()[0].grad();
      EXPECT_EQ(gradient.defined(), shard == Shard::None);
      if (shard != Shard::None) continue;
      EXPECT_EQ(gradient.isinf().sum().item<int>(), is_bad ? 1 : 0);
      optimizer.zero_grad();
    }
  }
}

TEST_F(GradScalerTest, GradientsThatAProgramHasChangedCount) {
  for (int culprit = 0; culprit < size(); ++culprit) {
    Single model({.shard = Shard::None});
    GradScaler scaler;
    model.backward(scaler, 1.0f);
    model.optimizer.synchronize();
    if (rank() == culprit) model.weight.mutable_grad().fill_(std::nanf(""));
    EXPECT_FALSE(scaler.step(model.optimizer));
    EXPECT_EQ(model.value(), 1.0);
  }
}

TEST_F(GradScalerTest, WorksAsWithHorovodUnderSkipSynchronize) {
  Single model({.shard = Shard::None});
  GradScaler scaler;
  for (int step = 0; step < 3; ++step) {
    const bool is_bad = step == 1;
    model.optimizer.zero_grad();
    model.backward(scaler, is_bad && is_last() ? kInfinity : 3.0f);
    model.optimizer.synchronize();
    scaler.unscale_(model.optimizer);
    model.optimizer.clip_grad_norm_(2.0);
    const auto guard = model.optimizer.skip_synchronize();
    EXPECT_EQ(scaler.step(model.optimizer), !is_bad);
    scaler.update();
  }
  EXPECT_NEAR(model.value(), 1.0 - 2 * 0.25 * 2.0, 1e-5);
}

TEST_F(GradScalerTest, StepsOfThisRankAloneConcernNoOther) {
  Single model({.shard = Shard::None});
  GradScaler scaler;
  const auto no_sync = model.optimizer.no_sync();
  const auto skip_synchronize = model.optimizer.skip_synchronize();
  for (int step = 0; step < 3 + rank(); ++step) {  // each rank as many as it likes
    model.optimizer.zero_grad();
    const bool is_bad = step == rank();
    model.backward(scaler, is_bad ? kInfinity : 1.0f);
    EXPECT_EQ(scaler.step(model.optimizer), !is_bad);
    scaler.update();
  }
  EXPECT_EQ(model.value(), 1.0 - 0.25 * (2 + rank()));
  EXPECT_EQ(scaler.get_scale(), 32768.0);
}

TEST_F(GradScalerTest, ServesSeveralOptimizers) {
  for (const Shard shard : kAllModes) {
    Single generator(with(shard));
    Single discriminator(with(shard));
    GradScaler scaler;
    for (int step = 0; step < 4; ++step) {
      generator.optimizer.zero_grad();
      discriminator.optimizer.zero_grad();
      generator.backward(scaler, step % 2 == 1 && is_last() ? kInfinity : 1.0f);
      discriminator.backward(scaler, step >= 2 && rank() == 0 ? kInfinity : 1.0f);
      EXPECT_EQ(scaler.step(generator.optimizer), step % 2 == 0);
      EXPECT_EQ(scaler.step(discriminator.optimizer), step < 2);
      scaler.update();
      // By half for the second, third and fourth step: once, though in the last both overflow.
      EXPECT_EQ(scaler.get_scale(), 65536.0 / std::pow(2.0, step));
    }
    EXPECT_EQ(generator.value(), 1.0 - 0.25 * 2);
    EXPECT_EQ(discriminator.value(), 1.0 - 0.25 * 2);
  }
}

TEST_F(GradScalerTest, UpdateAsksWhereNoStepHas) {
  Single model({.shard = Shard::Gradients});
  GradScaler scaler;
  for (int step = 0; step < 2; ++step) {
    model.backward(scaler, is_last() ? kInfinity : 1.0f);
    scaler.unscale_(model.optimizer);
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), 65536.0 / std::pow(2.0, step + 1));
    model.optimizer.zero_grad();
  }
}

// --- together with others ---

TEST_F(GradScalerTest, KeepsToItsProcessSet) {
  if (size() == 1) return;  // a set of fewer ranks has none
  std::vector<int> members(static_cast<std::size_t>(size() - 1));
  for (int i = 0; i < size() - 1; ++i) members[static_cast<std::size_t>(i)] = i + 1;
  ProcessSet& set = runtime_.add_process_set(members);
  for (const Shard shard : kAllModes) {
    if (!set.included()) continue;
    DistributedOptimizer::Options options = with(shard);
    options.process_set = &set;
    Single model(options);
    GradScaler scaler;
    for (int step = 0; step < 3; ++step) {
      model.optimizer.zero_grad();
      model.backward(scaler, step == 1 && is_last() ? kInfinity : 1.0f);
      EXPECT_EQ(scaler.step(model.optimizer), step != 1);
      scaler.update();
    }
    EXPECT_EQ(model.value(), 1.0 - 0.25 * 2);
  }
}

TEST_F(GradScalerTest, RanksThatHaveJoinedFindNothing) {
  Single model({.join_divisor = JoinDivisor::Active, .shard = Shard::None});
  GradScaler scaler;
  const int steps = is_last() ? 5 : 2;
  for (int step = 0; step < steps; ++step) {
    model.optimizer.zero_grad();
    model.backward(scaler, step == 3 ? kInfinity : 1.0f);
    EXPECT_EQ(scaler.step(model.optimizer), step != 3);
    scaler.update();
  }
  model.optimizer.join();
  EXPECT_EQ(model.value(), 1.0 - 0.25 * 4);
}

TEST_F(GradScalerTest, OverflowsOnTheWireAreFound) {
  for (const Shard shard : kAllModes) {
    Single model({.compression = Compression::fp16(), .shard = shard});
    GradScaler scaler;
    int taken = 0;
    for (int step = 0; step < 8; ++step) {
      model.optimizer.zero_grad();
      model.backward(scaler, 8.0f);  // times 65536 it is infinite in fp16
      taken += scaler.step(model.optimizer);
      scaler.update();
      EXPECT_EQ(scaler.get_scale(), 65536.0 / std::pow(2.0, step + 1 - taken));
    }
    EXPECT_GT(taken, 0);
    if (size() > 1) {
      EXPECT_LT(taken, 8);
    }
    EXPECT_EQ(model.value(), 1.0 - 0.25 * 8 * taken);
  }
}

TEST_F(GradScalerTest, TrainsUnderAutocast) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    for (const Shard shard : kAllModes) {
      torch::nn::Sequential model = make_mlp(torch::kFloat32);
      torch::optim::AdamW inner(model->parameters(), 1e-2);
      DistributedOptimizer optimizer(inner, *model, with(shard));
      GradScaler scaler;
      double first = 0.0;
      double last = 0.0;
      for (int step = 0; step < 60; ++step) {
        optimizer.zero_grad();
        at::Tensor own;
        {
          const Autocast autocast(type);
          own = loss(model, 0);
        }
        EXPECT_EQ(own.scalar_type(), at::kFloat);
        last = allreduce(own.detach()).item<double>();
        if (step == 0) first = last;
        scaler.scale(own).backward();
        scaler.unscale_(optimizer);
        optimizer.clip_grad_norm_(1.0);
        scaler.step(optimizer);
        scaler.update();
      }
      EXPECT_LT(last, 0.2 * first);
      expect_equal_on_all_ranks(flat(*model));
    }
  }
}

}  // namespace
}  // namespace kolo::test

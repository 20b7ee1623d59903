// What programs do with gradients between backward() and step(), in every shard mode, with and
// without shared memory.
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/error.hpp"
#include "kolo/torch/activation_checkpoint.hpp"
#include "kolo/torch/distributed_optimizer.hpp"
#include "kolo/torch/tensor_collectives.hpp"
#include "train/sharding.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test::program_gradients_test {

constexpr std::int64_t kSize = 24;

at::Tensor ramp(double factor) { return torch::arange(kSize, torch::kFloat64) * factor; }

/// Layers of one weight each, which start at zero, in buckets of their own; learning rate 1.
struct Layers : torch::nn::Module {
  explicit Layers(DistributedOptimizer::Options options)
      : weights(make_weights(*this)),
        inner(weights, 1.0),
        optimizer(inner, *this, std::move(options)) {}

  static std::vector<at::Tensor> make_weights(Layers& self) {
    std::vector<at::Tensor> made;
    for (int i = 0; i < 6; ++i) {
      made.push_back(self.register_parameter("layer" + std::to_string(i),
                                             torch::zeros({kSize}, torch::kFloat64)));
    }
    return made;
  }
  /// The gradient of each of these layers is `factor` * [0, 1, 2, …].
  at::Tensor loss(double factor, const std::vector<std::size_t>& used = {0, 1, 2, 3, 4, 5}) {
    at::Tensor sum = torch::zeros({}, torch::kFloat64);
    for (const std::size_t i : used) sum = sum + (weights[i] * ramp(factor)).sum();
    return sum;
  }
  void expect(std::size_t layer, double factor, const std::string& what = {}) {
    EXPECT_TRUE(torch::allclose(-weights[layer].detach(), ramp(factor)))
        << what << " layer " << layer << ": " << weights[layer] << " not -" << factor << " * ramp";
  }

  std::vector<at::Tensor> weights;
  torch::optim::SGD inner;
  DistributedOptimizer optimizer;
};

class ProgramGradientsTest : public testing::TestWithParam<std::tuple<Shard, bool>> {
 protected:
  static Config config() {
    Config config = config_from_environment();
    config.shared_memory = std::get<1>(GetParam());
    return config;
  }
  static Shard shard() { return std::get<0>(GetParam()); }
  static bool is_sharded() { return shard() != Shard::None; }
  static DistributedOptimizer::Options options() {
    DistributedOptimizer::Options options = with(shard());
    options.bucket_bytes = 1;
    return options;
  }
  int rank() const { return runtime_.rank(); }
  int size() const { return runtime_.size(); }
  /// Whether all ranks must use the same parameters.
  bool gathers() const { return shard() == Shard::Full && !runtime_.config().shared_memory; }
  /// A factor that differs between ranks, and its mean.
  double own(double factor) const { return factor * (rank() + 1); }
  double mean(double factor) const { return factor * (size() + 1) / 2.0; }

  Runtime runtime_{in_test_world(config())};
};

INSTANTIATE_TEST_SUITE_P(, ProgramGradientsTest,
                         testing::Combine(testing::ValuesIn(all_modes()), testing::Bool()),
                         [](const auto& item) {
                           return std::string(name_of(std::get<0>(item.param))) +
                                  (std::get<1>(item.param) ? "" : "ByMessages");
                         });

/// A function without a gradient for its input, as one that does not pass it on.
struct NoGradient : torch::autograd::Function<NoGradient> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& input) {
    return input * 2;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list&) {
    return {at::Tensor()};
  }
};

TEST_P(ProgramGradientsTest, ParametersThatBackwardGivesNoGradient_StayAsTheyAre) {
  const std::vector<std::function<void(Layers&, double)>> ways{
      [](Layers& model, double factor) {
        (model.loss(factor, {0, 1, 3, 4, 5}) + NoGradient::apply(model.weights[2]).sum())
            .backward();
      },
      [](Layers& model, double factor) {
        const std::vector<at::Tensor> results = kolo::checkpoint(
            [&](const std::vector<at::Tensor>& inputs) {
              return std::vector<at::Tensor>{inputs[0] * model.loss(1.0, {0, 1}),
                                             inputs[0] * model.loss(1.0, {2})};
            },
            {torch::ones({}, torch::kFloat64)});
        (results[0] * factor + model.loss(factor, {3, 4, 5})).backward();
      },
      [](Layers& model, double factor) {
        const at::Tensor loss = model.loss(factor);
        model.weights[2].requires_grad_(false);
        loss.backward();
        model.weights[2].requires_grad_(true);
      },
  };
  for (std::size_t way = 0; way < ways.size(); ++way) {
    Layers model(options());
    for (int step = 0; step < 3; ++step) {
      model.optimizer.zero_grad();
      ways[way](model, own(1));
      model.optimizer.step();
    }
    for (std::size_t i = 0; i < model.weights.size(); ++i) {
      model.expect(i, i == 2 ? 0.0 : mean(3), "way " + std::to_string(way));
    }
  }
}

TEST_P(ProgramGradientsTest, GradientDroppedAfterItsPassWasReduced_MayNotArriveAgain) {
  DistributedOptimizer::Options chosen = options();
  chosen.backward_passes_per_step = 2;
  chosen.accumulation = Accumulation::Reduced;
  if (shard() < Shard::Gradients) {
    expect_contains(text_thrown_by<InvalidArgument>([&] { const Layers model(chosen); }),
                    "accumulation = Reduced requires shard = gradients or full");
    return;
  }
  Layers model(chosen);
  const auto take_two_passes = [&](bool drops) {
    model.loss(own(1)).backward();
    if (drops) model.weights[4].mutable_grad().reset();
    model.loss(own(2)).backward();
    model.optimizer.step();
  };
  take_two_passes(false);
  expect_contains(text_thrown_by<InvalidArgument>([&] { take_two_passes(true); }),
                  "parameter 'layer4' got another gradient after that of an earlier pass");
  model.optimizer.zero_grad();
  take_two_passes(false);
  for (std::size_t i = 0; i < model.weights.size(); ++i) model.expect(i, 2 * mean(3));
}

TEST_P(ProgramGradientsTest, ExceptionInBackward_EndsThatPassAlone) {
  for (const bool by_model : {true, false}) {
    Layers model(options());
    double expected = 0.0;
    for (int step = 1; step <= 3; ++step) {
      at::Tensor inner = model.weights[2] * ramp(own(1000));
      inner.register_hook([](const at::Tensor&) { throw std::runtime_error("a bad batch"); });
      const at::Tensor loss = model.loss(own(1000), {3, 4, 5}) + inner.sum();
      EXPECT_THROW(loss.backward(), std::runtime_error);
      if (step == 2) {
        expect_contains(text_thrown_by<InvalidArgument>([&] { model.loss(own(1)).backward(); }),
                        "An earlier backward() has ended with an exception");
      }
      by_model ? model.zero_grad() : model.optimizer.zero_grad();
      model.loss(own(step)).backward();
      model.optimizer.step();
      model.optimizer.zero_grad();
      expected += mean(step);
      for (std::size_t i = 0; i < model.weights.size(); ++i) model.expect(i, expected);
    }
  }
}

TEST_P(ProgramGradientsTest, Visitor_ChangesDropsAndSums) {
  Layers model(options());
  for (int step = 1; step <= 3; ++step) {
    model.optimizer.zero_grad();
    model.loss(own(1)).backward();
    double squares = 0.0;
    const int copies =
        model.optimizer.for_each_gradient([&](const std::string& name, at::Tensor& gradient) {
          if (name == "layer1") gradient.reset();
          if (name == "layer2") gradient.mul_(3.0);
          if (name == "layer3") gradient = gradient * 0.5;
          if (name == "layer4" || name == "layer5")
            squares += gradient.square().sum().item<double>();
        });
    const double sum =
        allreduce(at::scalar_tensor(squares, at::kDouble), {.op = ReduceOp::Sum}).item<double>();
    const double norm = ramp(mean(1)).norm().item<double>();
    EXPECT_NEAR(std::sqrt(sum / copies), std::sqrt(2.0) * norm, 1e-9);
    EXPECT_EQ(copies, is_sharded() ? 1 : size());
    model.optimizer.step();
    model.expect(0, step * mean(1));
    model.expect(1, 0.0);
    model.expect(2, step * mean(3));
    model.expect(3, step * mean(0.5));
  }
  model.optimizer.zero_grad();
  model.loss(own(1)).backward();
  expect_contains(text_thrown_by<InvalidArgument>([&] {
                    model.optimizer.for_each_gradient([](const std::string&, at::Tensor& gradient) {
                      gradient = torch::zeros({kSize + 1}, torch::kFloat64);
                    });
                    throw InvalidArgument("this rank has no piece: another shape, dtype or device");
                  }),
                  "another shape, dtype or device");
}

TEST_P(ProgramGradientsTest, ChangesThatWouldBeLost_Throw) {
  Layers model(options());
  for (int step = 1; step <= 3; ++step) {
    model.optimizer.zero_grad();
    model.loss(own(1)).backward();
    model.optimizer.synchronize();
    if (is_sharded()) {
      const char* const text = "is being reduced to shards of all ranks, or has been";
      expect_contains(text_thrown_by<c10::Error>(
                          [&] { torch::nn::utils::clip_grad_value_(model.weights, 0.1); }),
                      text);
      expect_contains(text_thrown_by<c10::Error>(
                          [&] { torch::nn::utils::clip_grad_norm_(model.weights, 0.1); }),
                      text);
      model.weights[1].mutable_grad() = ramp(7);
      expect_contains(text_thrown_by<InvalidArgument>([&] { model.optimizer.step(); }),
                      "parameter 'layer1' has got another gradient after synchronize()");
    } else {
      torch::nn::utils::clip_grad_value_(model.weights, 1e9);
      model.weights[1].mutable_grad() = ramp(7);
      model.optimizer.step();
      model.expect(1, step * 7.0);
    }
  }
  if (gathers()) return;  // buckets may not have been submitted yet
  model.optimizer.zero_grad();
  model.loss(own(1)).backward();
  model.weights[0].mutable_grad() = ramp(7);
  expect_contains(text_thrown_by<InvalidArgument>([&] { model.optimizer.step(); }),
                  "the gradient of parameter 'layer0' was replaced while it was being reduced");
}

TEST_P(ProgramGradientsTest, ClippingByNorm_IsAlikeForAllDtypesAndLayouts) {
  const at::Tensor half = torch::zeros({1000}, torch::dtype(torch::kHalf).requires_grad(true));
  const at::Tensor empty = torch::zeros({0, 3}, torch::requires_grad());
  const at::Tensor table = torch::zeros({6, 2}, torch::requires_grad());
  torch::optim::SGD inner({half, empty, table}, 1.0);
  DistributedOptimizer optimizer(inner, {{"half", half}, {"empty", empty}, {"table", table}},
                                 {.shard = shard()});
  const double infinity = std::numeric_limits<double>::infinity();
  for (int step = 0; step < 6; ++step) {
    optimizer.zero_grad();
    const at::Tensor rows = torch::tensor({0, 0, 5});
    const at::Tensor embedded = torch::embedding(table, rows, -1, false, /*sparse=*/true);
    ((half * 300).sum() + empty.sum() + embedded.sum() * 100).backward();
    const at::Tensor before = half.detach().clone();
    const double norm_type = step % 2 == 0 ? 2.0 : infinity;
    const double expected =
        step % 2 == 0 ? std::sqrt(1000 * 300.0 * 300 + 2 * (200.0 * 200 + 100 * 100)) : 300.0;
    EXPECT_NEAR(optimizer.clip_grad_norm_(expected / 2, norm_type), expected, 1e-3 * expected);
    optimizer.step();
    EXPECT_TRUE(torch::equal(half.detach(), before - 150.0)) << step << ": " << half;
    EXPECT_TRUE(torch::allclose(table[0].detach(), torch::full({2}, -100.0 * (step + 1))));
  }
}

TEST_P(ProgramGradientsTest, GradientDroppedOnOneRankAlone_IsAMismatchOneStepLater) {
  if (size() == 1) GTEST_SKIP() << "one rank differs from no other";
  Layers model(options());
  const auto train = [&](bool drops) {
    model.optimizer.zero_grad();
    model.loss(own(1)).backward();
    if (drops) model.weights[2].mutable_grad().reset();
    model.optimizer.step();
  };
  train(false);
  train(rank() == 0);
  expect_contains(
      text_thrown_by<MismatchError>([&] { train(false); }),
      "changes of gradients or state in the last step is gradient of 'layer2' dropped on rank 0");
}

}  // namespace kolo::test::program_gradients_test

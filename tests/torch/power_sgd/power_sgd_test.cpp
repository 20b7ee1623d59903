// What PowerSGD makes of gradients.
#include "kolo/power_sgd.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "kolo/distributed_optimizer.hpp"
#include "kolo/grad_scaler.hpp"
#include "torch/torch_fixture.hpp"

namespace kolo::test::power_sgd_test {

using Tensors = std::vector<at::Tensor>;

/// Numbers between -1 and 1 that no matrix of low rank has.
at::Tensor noise(int salt, int rank, const Shape& shape, at::ScalarType type = at::kFloat) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  const at::Tensor place = at::arange(count, at::kDouble);
  return (place * place * 0.37 + place * (rank + 1.3) + salt * 0.71).sin().reshape(shape).to(type);
}

/// Parameters whose gradients are what the test says, and SGD, which makes their sum.
struct Training {
  Training(const std::vector<Shape>& shapes, const PowerSgdOptions* compression,
           at::ScalarType type = at::kFloat, DistributedOptimizer::Options options = {})
      : parameters([&] {
          Tensors zeros;
          for (const Shape& shape : shapes) {
            zeros.push_back(at::zeros(shape, type).requires_grad_());
          }
          return zeros;
        }()),
        inner(parameters, 1.0),
        optimizer(inner, DistributedOptimizer::NamedParameters{}, std::move(options)) {
    for (const Shape& shape : shapes) sums.push_back(at::zeros(shape, at::kDouble));
    if (compression != nullptr) {
      optimizer.register_bucket_hook(PowerSgd(*compression).hook());
    }
  }

  /// Autograd gets these gradients; none where one is undefined.
  void backward(const Tensors& gradients, GradScaler* scaler = nullptr) {
    optimizer.zero_grad();
    at::Tensor loss = at::zeros({}, parameters[0].options());
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (gradients[i].defined()) loss = loss + (parameters[i] * gradients[i]).sum();
    }
    (scaler != nullptr ? scaler->scale(loss) : loss).backward();
  }

  /// Returns the reduced gradients.
  Tensors step(const Tensors& gradients) {
    backward(gradients);
    optimizer.step();
    Tensors reduced;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor& gradient = parameters[i].grad();
      reduced.push_back(gradient.defined() ? gradient.clone() : at::Tensor());
      if (gradient.defined()) sums[i] += gradient;
    }
    return reduced;
  }

  Tensors parameters;
  torch::optim::SGD inner;
  DistributedOptimizer optimizer;
  Tensors sums;  // of reduced gradients, in float64
};

class PowerSgdTest : public TorchTest {
 protected:
  /// The mean over all ranks of what `of_rank` gives, in float64.
  at::Tensor mean(const std::function<at::Tensor(int rank)>& of_rank) {
    at::Tensor sum = of_rank(0).to(at::kDouble);
    for (int other = 1; other < size(); ++other) sum += of_rank(other);
    return sum / size();
  }

  void expect_equal_on_all_ranks(const at::Tensor& tensor) {
    const at::Tensor all = allgather(tensor.detach().unsqueeze(0));
    for (int other = 0; other < size(); ++other) expect_equal(all[other], all[0]);
  }
};

void expect_near(const at::Tensor& got, const at::Tensor& expected, double tolerance,
                 const std::string& what = {}) {
  EXPECT_LT((got.to(at::kDouble) - expected).abs().max().item<double>(), tolerance) << what;
}

TEST_F(PowerSgdTest, GradientsOfLowRank_AreExact) {
  const std::vector<Shape> shapes{{33, 7}, {6, 4, 3, 3}, {40, 40}};
  const auto gradient = [&](int of_rank, const Shape& shape, int step) {
    const std::int64_t columns = at::zeros(shape)[0].numel();
    const at::Tensor left = noise(step, 5, {shape[0], 2}) * (of_rank + at::arange(1, 3));
    return at::mm(left, noise(7, 6, {2, columns})).view(shape);
  };
  for (const bool has_feedback : {true, false}) {
    const PowerSgdOptions options{
        .rank = 2, .start_step = 0, .min_compression_rate = 1.0, .error_feedback = has_feedback};
    Training training(shapes, &options);
    for (int step = 0; step < 4; ++step) {
      Tensors own;
      for (const Shape& shape : shapes) own.push_back(gradient(rank(), shape, step));
      const Tensors reduced = training.step(own);
      for (std::size_t i = 0; i < shapes.size(); ++i) {
        const auto of_rank = [&](int other) { return gradient(other, shapes[i], step); };
        expect_near(reduced[i], mean(of_rank), 1e-5, std::to_string(step));
      }
    }
  }
}

TEST_F(PowerSgdTest, WarmStart_FindsTheBestApproximation) {
  const Shape shape{24, 31};
  const at::Tensor whole = mean([&](int other) { return noise(1, other, shape); });
  const auto [u, s, v] = at::linalg_svd(whole, /*full_matrices=*/false);
  const at::Tensor best = s[0] * at::outer(u.select(1, 0), v[0]);
  const auto distance_after = [&](bool is_warm) {
    const PowerSgdOptions options{.start_step = 0, .error_feedback = false, .warm_start = is_warm};
    Training training({shape}, &options);
    at::Tensor last;
    for (int step = 0; step < 50; ++step) last = training.step({noise(1, rank(), shape)})[0];
    return (last - best).norm().item<double>() / best.norm().item<double>();
  };
  EXPECT_LT(distance_after(true), 0.05);
  EXPECT_GT(distance_after(false), 0.1);
}

/// After steps with noise, steps with zeros: each takes one direction, or as many as the rank,
/// from what is left of the mean, until all of it has arrived.
TEST_F(PowerSgdTest, Residuals_ArriveLater) {
  // Of one shape, so that a residual in the wrong place shows; buckets of one parameter each.
  const std::vector<Shape> shapes{{6, 50}, {6, 50}, {5}};
  constexpr int kSteps = 4;
  const std::pair<at::ScalarType, bool> kinds[] = {
      {at::kFloat, true}, {at::kFloat, false}, {at::kDouble, false}, {at::kBFloat16, true}};
  for (const auto& [type, is_warm] : kinds) {
    const PowerSgdOptions options{
        .rank = 2, .start_step = 0, .min_compression_rate = 1.5, .warm_start = is_warm};
    Training training(shapes, &options, type, {.bucket_bytes = 1});
    const auto gradient = [&](int step, int other, std::size_t i) {
      return noise(step + 10 * static_cast<int>(i), other, shapes[i], type);
    };
    const auto whole = [&](std::size_t i) {
      return mean([&](int other) {
        at::Tensor sum = at::zeros(shapes[i], at::kDouble);
        for (int step = 0; step < kSteps; ++step) sum += gradient(step, other, i);
        return sum;
      });
    };
    for (int step = 0; step < kSteps; ++step) {
      Tensors own;
      for (std::size_t i = 0; i < shapes.size(); ++i) own.push_back(gradient(step, rank(), i));
      training.step(own);
    }
    EXPECT_GT((training.sums[0] - whole(0)).abs().max().item<double>(), 0.1);
    Tensors zeros;
    for (const Shape& shape : shapes) zeros.push_back(at::zeros(shape, type));
    for (int step = 0; step < 10; ++step) training.step(zeros);
    const double tolerance = type == at::kDouble ? 1e-12 : type == at::kFloat ? 1e-5 : 3e-2;
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      expect_near(training.sums[i], whole(i), tolerance, c10::str(type, " ", i, " ", is_warm));
    }
  }
}

TEST_F(PowerSgdTest, WithoutFeedback_ResidualsAreLost) {
  const PowerSgdOptions options{.start_step = 0, .error_feedback = false};
  Training training({{8, 8}}, &options);
  training.step({noise(1, rank(), {8, 8})});
  const at::Tensor zeros = at::zeros({8, 8});
  expect_near(training.step({zeros})[0], zeros, 1e-30);
}

TEST_F(PowerSgdTest, Results_HaveTheSameBitsOnAllRanks) {
  const PowerSgdOptions options{.rank = 3, .start_step = 1};
  const std::vector<Shape> shapes{{65, 33}, {129}, {48, 7, 3, 3}};
  Training training(shapes, &options);
  for (int step = 0; step < 4; ++step) {
    Tensors own;
    for (const Shape& shape : shapes) own.push_back(noise(step, rank(), shape));
    training.step(own);
  }
  for (const at::Tensor& parameter : training.parameters) expect_equal_on_all_ranks(parameter);
}

TEST_F(PowerSgdTest, VectorsSmallMatricesAndFirstSteps_AreAveragedAsWithoutIt) {
  const std::vector<Shape> shapes{{16, 16}, {11}, {4, 4}, {30, 5}};
  // 16 x 16 is 8 times 32, and 30 x 5 4.3 times 35.
  const PowerSgdOptions options{.start_step = 2, .min_compression_rate = 8.0};
  Training compressed(shapes, &options);
  Training plain(shapes, nullptr);
  for (int step = 0; step < 4; ++step) {
    Tensors own;
    for (const Shape& shape : shapes) own.push_back(noise(step, rank(), shape));
    const Tensors got = compressed.step(own);
    const Tensors expected = plain.step(own);
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      const bool is_compressed = step >= options.start_step && i == 0;
      EXPECT_EQ(at::allclose(got[i], expected[i], 1e-6, 1e-6), !is_compressed) << step << ", " << i;
    }
  }
}

/// What this rank sends in a step of a model of three layers with 256 inputs and outputs.
double bytes_sent(ProcessSet& set, const PowerSgdOptions* options) {
  const std::vector<Shape> shapes{{256, 256}, {256}, {256, 256}, {256}, {256, 256}, {256}};
  Training training(shapes, options);
  Tensors own;
  for (const Shape& shape : shapes) own.push_back(noise(1, set.rank(), shape));
  std::uint64_t before = 0;
  for (int step = 0; step < 3; ++step) {  // the first one lays the buckets out
    before = set.metrics().bytes_sent;
    training.step(own);
  }
  return static_cast<double>(set.metrics().bytes_sent - before);
}

TEST_F(PowerSgdTest, BytesSent_AreThoseOfItsFormula) {
  const double share = 2.0 * (size() - 1) / size();  // of a rank, in an all-reduce
  const double vectors = 3 * 256 * 4;
  const double plain = bytes_sent(runtime_.world(), nullptr);
  for (const int columns : {1, 4}) {
    const PowerSgdOptions options{.rank = columns, .start_step = 0};
    const double sent = bytes_sent(runtime_.world(), &options);
    const double expected = share * (3.0 * (256 + 256) * columns * 4 + vectors);
    // Equal but for flags and for shares that end at whole cache lines.
    EXPECT_NEAR(sent, expected, 0.05 * expected) << columns;
    if (size() > 1) {
      EXPECT_GT(plain / sent, columns == 1 ? 40 : 20);
    }
  }
}

TEST_F(PowerSgdTest, OverflowOfOneRank_SkipsTheStepAndLeavesStateAsItWas) {
  const PowerSgdOptions options{.start_step = 0};
  const Shape shape{12, 9};
  const auto train = [&](float damage) {
    Training training({shape}, &options);
    GradScaler scaler({.init_scale = 1.0});
    for (int step = 0; step < 5; ++step) {
      at::Tensor own = noise(step, rank(), shape);
      if (step == 2 && damage != 0) {
        at::Tensor bad = own.clone();
        if (is_last()) bad[3][4] = damage;
        training.backward({bad}, &scaler);
        EXPECT_FALSE(scaler.step(training.optimizer));
        EXPECT_TRUE(training.parameters[0].grad().isnan().all().item<bool>());
        scaler.update(1.0);
      }
      training.backward({own}, &scaler);
      EXPECT_TRUE(scaler.step(training.optimizer));
      scaler.update(1.0);
    }
    return training.parameters[0].detach();
  };
  const at::Tensor undamaged = train(0);
  expect_equal(train(std::numeric_limits<float>::infinity()), undamaged);
  expect_equal(train(std::numeric_limits<float>::quiet_NaN()), undamaged);
}

TEST_F(PowerSgdTest, GradientsThatNoRankHas_LeaveStateAsItWas) {
  const PowerSgdOptions options{.start_step = 0};
  const std::vector<Shape> shapes{{12, 9}, {9, 12}};
  const auto train = [&](bool pauses) {
    Training training(shapes, &options);
    for (int step = 0; step < 4; ++step) {
      if (pauses && step == 2) {
        EXPECT_FALSE(training.step({{}, at::zeros(shapes[1])})[0].defined());
      }
      // Where one rank has a gradient, the others count as zeros.
      const at::Tensor first =
          step == 3 && !is_last() ? at::Tensor() : noise(step, rank(), shapes[0]);
      training.step({first, at::zeros(shapes[1])});
    }
    return training.parameters[0].detach();
  };
  expect_equal(train(true), train(false));
}

TEST_F(PowerSgdTest, ZeroGradients_DoNotStopIt) {
  const PowerSgdOptions options{.start_step = 0};
  Training training({{10, 10}}, &options);
  training.step({at::zeros({10, 10})});
  training.step({at::zeros({10, 10})});
  const at::Tensor ones = at::ones({10, 10}) * (rank() + 1.0);
  expect_near(training.step({ones})[0], at::ones({10, 10}, at::kDouble) * (size() + 1) / 2, 1e-5);
}

TEST_F(PowerSgdTest, TinyGradients_DoNotVanish) {
  const PowerSgdOptions options{.start_step = 0};
  Training training({{10, 10}}, &options);
  const at::Tensor tiny = at::ones({10, 10}) * 1e-25;
  for (int step = 0; step < 3; ++step) {
    expect_near(training.step({tiny})[0] * 1e25, at::ones({10, 10}, at::kDouble), 1e-5);
  }
}

TEST_F(PowerSgdTest, ProcessSet_IsAveragedByItself) {
  std::vector<int> members;
  for (int member = size() / 2; member < size(); ++member) members.push_back(member);
  ProcessSet& set = runtime_.add_process_set(members);
  if (!set.included()) return;
  const PowerSgdOptions options{.start_step = 0, .process_set = &set};
  Training training({{16, 16}}, &options, at::kFloat, {.process_set = &set});
  const at::Tensor ones = at::ones({16, 16});
  const double expected = (size() / 2 + size() - 1) / 2.0 + 1;
  expect_near(training.step({ones * (rank() + 1.0)})[0], ones.to(at::kDouble) * expected, 1e-5);
}

TEST_F(PowerSgdTest, AnotherProcessSet_IsAnError) {
  ProcessSet& set = runtime_.add_process_set(runtime_.world().ranks());
  const PowerSgdOptions options{.start_step = 0, .process_set = &set};
  Training training({{16, 16}}, &options);
  expect_refused([&] { training.backward({at::ones({16, 16})}); },
                 "PowerSgd: it was made for process set " + set.name());
}

TEST_F(PowerSgdTest, RankThatHasJoined_CountsAsZeros) {
  const PowerSgdOptions options{.start_step = 1};
  Training training({{16, 16}}, &options);
  const at::Tensor ones = at::ones({16, 16});
  const int steps = is_last() ? 2 : 4;
  for (int step = 0; step < steps; ++step) {
    const double present = step < 2 ? size() : size() - 1;
    const at::Tensor reduced = training.step({ones})[0];
    EXPECT_NEAR(reduced[0][0].item<double>(), present / size(), 1e-5) << step;
  }
  training.optimizer.join();
  expect_near(training.step({ones})[0], ones.to(at::kDouble), 1e-5);
  expect_equal_on_all_ranks(training.parameters[0]);
}

TEST_F(PowerSgdTest, WrongOptions_AreErrorsOnAllRanks) {
  const auto expect_text = [&](const PowerSgdOptions& wrong, const std::string& text) {
    expect_refused([&] { PowerSgd(is_last() ? wrong : PowerSgdOptions{}); }, text);
  };
  expect_text({.rank = 0}, "rank is 0");
  expect_text({.start_step = -1}, "start_step is -1");
  expect_text({.min_compression_rate = 0.5}, "min_compression_rate is 0.5");
  expect_text({.min_compression_rate = std::numeric_limits<double>::quiet_NaN()},
              "min_compression_rate is nan");
  if (size() == 1) return;
  const auto expect_mismatch = [&](const PowerSgdOptions& other, const std::string& text) {
    expect_refused<MismatchError>([&] { PowerSgd(is_last() ? other : PowerSgdOptions{}); }, text);
  };
  expect_mismatch({.rank = 2}, "rank is 1 on rank 0");
  expect_mismatch({.start_step = 7}, "start_step is 1000 on rank 0");
  expect_mismatch({.min_compression_rate = 3}, "min_compression_rate is 2");
  expect_mismatch({.error_feedback = false}, "error_feedback is true on rank 0");
  expect_mismatch({.warm_start = false}, "warm_start is true on rank 0");
  expect_mismatch({.seed = 7}, "seed is 0 on rank 0");
}

TEST_F(PowerSgdTest, ObjectOfAnotherOptimizer_IsAnError) {
  const PowerSgdOptions options{.start_step = 0};
  PowerSgd power_sgd(options);
  Training first({{16, 16}}, nullptr);
  first.optimizer.register_bucket_hook(power_sgd.hook());
  first.step({at::ones({16, 16})});
  Training second({{32, 16}}, nullptr);
  second.optimizer.register_bucket_hook(power_sgd.hook());
  expect_refused([&] { second.backward({at::ones({32, 16})}); }, "the state of another parameter");
}

TEST_F(PowerSgdTest, ShardedOptimizer_RefusesIt) {
  for (const Shard shard : {Shard::Optimizer, Shard::Gradients, Shard::Full}) {
    Training training({{16, 16}}, nullptr, at::kFloat, {.shard = shard});
    PowerSgd power_sgd;
    EXPECT_THROW(training.optimizer.register_bucket_hook(power_sgd.hook()), InvalidArgument);
  }
}

}  // namespace kolo::test::power_sgd_test

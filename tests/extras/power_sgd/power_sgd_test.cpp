// Gradients that PowerSGD has compressed.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "extras/power_sgd/power_sgd_training.hpp"

namespace kolo::test::power_sgd_test {

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
  if (size() == 1) GTEST_SKIP() << "one rank compresses nothing";
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
  EXPECT_LT(distance_after(true), 0.02);
  EXPECT_GT(distance_after(false), 0.1);
}

/// Steps with noise, then steps with zeros. Each of the latter takes as many directions as the
/// compression's rank from the remaining mean, until all of it has arrived.
TEST_F(PowerSgdTest, Residuals_ArriveLater) {
  if (size() == 1) GTEST_SKIP() << "one rank compresses nothing";
  // Equal shapes, so that residuals in the wrong place would not go unnoticed; one parameter per
  // bucket.
  const std::vector<Shape> shapes{{6, 50}, {6, 50}, {5}};
  constexpr int kSteps = 4;
  const std::pair<at::ScalarType, bool> kinds[] = {
      {at::kFloat, true}, {at::kFloat, false}, {at::kDouble, false}, {at::kBFloat16, true}};
  for (const auto& [type, is_warm] : kinds) {
    const PowerSgdOptions options{
        .rank = 2, .start_step = 0, .min_compression_rate = 1.5, .warm_start = is_warm};
    Training training(shapes, &options, type, {.bucket_bytes = 1});
    const auto gradient = [&, type = type](int step, int other, std::size_t i) {
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
    const double tolerance = type == at::kDouble ? 1e-6 : type == at::kFloat ? 1e-5 : 3e-2;
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
  // Compression rates: 256 / 32 = 8 for 16 x 16, 150 / 35 = 4.3 for 30 x 5.
  const PowerSgdOptions options{.start_step = 2, .min_compression_rate = 8.0};
  Training compressed(shapes, &options);
  Training plain(shapes, nullptr);
  for (int step = 0; step < 4; ++step) {
    Tensors own;
    for (const Shape& shape : shapes) own.push_back(noise(step, rank(), shape));
    const Tensors got = compressed.step(own);
    const Tensors expected = plain.step(own);
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      const bool is_compressed = size() > 1 && step >= options.start_step && i == 0;
      EXPECT_EQ(at::allclose(got[i], expected[i], 1e-6, 1e-6), !is_compressed) << step << ", " << i;
    }
  }
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

/// The bytes that this rank sends in one step of a model of three layers with 256 inputs and
/// outputs.
double bytes_sent(ProcessSet& set, const PowerSgdOptions* options) {
  const std::vector<Shape> shapes{{256, 256}, {256}, {256, 256}, {256}, {256, 256}, {256}};
  Training training(shapes, options);
  Tensors own;
  for (const Shape& shape : shapes) own.push_back(noise(1, set.rank(), shape));
  std::uint64_t before = 0;
  for (int step = 0; step < 3; ++step) {  // the first step lays out the buckets
    before = set.metrics().bytes_sent;
    training.step(own);
  }
  return static_cast<double>(set.metrics().bytes_sent - before);
}

/// With an algorithm whose traffic is proportional to the number of elements.
class PowerSgdTrafficTest : public testing::Test {
 protected:
  static Config ring() {
    Config config = config_from_environment();
    config.algorithm = "allreduce:ring";
    return config;
  }
  int size() const { return runtime_.size(); }

  Runtime runtime_{in_test_world(ring())};
};

TEST_F(PowerSgdTrafficTest, BytesSent_AreThoseOfItsFormula) {
  const double share = 2.0 * (size() - 1) / size();  // of a rank, in an all-reduce
  const double vectors = 3 * 256 * 4;
  const double plain = bytes_sent(runtime_.world(), nullptr);
  for (const int columns : {1, 4}) {
    const PowerSgdOptions options{.rank = columns, .start_step = 0};
    const double sent = bytes_sent(runtime_.world(), &options);
    const double expected = share * (3.0 * (256 + 256) * columns * 4 + vectors);
    // Equal but for flags, and for pieces that are rounded up to whole cache lines.
    EXPECT_NEAR(sent, expected, 0.05 * expected) << columns;
    if (size() > 1) {
      EXPECT_GT(plain / sent, columns == 1 ? 40 : 20);
    }
  }
}

}  // namespace kolo::test::power_sgd_test

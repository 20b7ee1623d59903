// Codecs in training: losses, bytes, memory, which parameters are encoded, refused options.
#include "train/compression/coded_training.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/error.hpp"
#include "support/mpi/variants.hpp"

namespace kolo::test::compression_test {

const AlsoIn coded_training_in({"alone", "uneven"});

class CodedTrainingTest : public CompressionTest {};
INSTANTIATE_TEST_SUITE_P(, CodedTrainingTest, testing::ValuesIn(all_modes()),
                         [](const auto& test) { return std::string(name_of(test.param)); });

/// Without feedback, or with a part of it, the loss is 1.07 to 8 times as large; int8 alone hardly
/// needs it. A codec whose error has no bound promises nothing.
TEST_P(CodedTrainingTest, ErrorFeedback_TrainsAsWithoutACodec) {
  const double plain = trained_loss({.shard = GetParam()});
  for (const Compression& compression : all_codecs()) {
    const double error = compression::Registry().find_codec(compression.name())->error_bound();
    if (error > 1) continue;
    const double coded = trained_loss({.compression = compression, .shard = GetParam()});
    EXPECT_NEAR(coded / plain, 1.0, std::min(error / 4, 0.06)) << compression.name();
  }
  const double lossy = trained_loss(
      {.compression = Compression::top_k(0.02), .error_feedback = false, .shard = GetParam()});
  EXPECT_EQ(lossy > 1.5 * plain, size() > 1) << lossy << " beside " << plain;
}

/// One parameter, with several blocks for each rank.
TEST_P(CodedTrainingTest, BytesEqualTheFormula) {
  const auto ranks = static_cast<std::uint64_t>(size());
  const std::uint64_t others = ranks - 1;
  const std::uint64_t elements = 4 * 16384;           // of a rank's piece
  const std::uint64_t plain = others * elements * 4;  // of one reduce-scatter or all-gather
  for (const Compression& compression : all_codecs()) {
    LinearTraining training(summed(compression), {{static_cast<std::int64_t>(elements * ranks)}});
    training.run(0, 3);
    const TrainingReport report = training.optimizer().report();
    const bool is_whole = GetParam() == Shard::None;
    const std::uint64_t own = coded_bytes(compression, elements);
    const std::uint64_t sum = is_whole ? coded_bytes(compression, elements, size()) : 0;
    const std::uint64_t coded = others * (own + sum);
    const std::uint64_t gathered = report.expected_sent_per_step - coded;
    if (is_whole) {
      EXPECT_EQ(gathered, 0U);
    } else {
      const std::uint64_t most = (gathers_on_use() && GetParam() == Shard::Full ? 2 : 1) * plain;
      EXPECT_LE(gathered, most);
    }
    EXPECT_EQ(report.expected.residuals,
              is_coded() ? 8 * elements * ranks : report.expected.residuals);
    EXPECT_EQ(report.now.residuals, report.expected.residuals);
    // Not in the formula: the flags of one bucket, and gathered bytes that do not move.
    if (is_whole) {
      EXPECT_GE(report.sent_per_step, coded);
      EXPECT_LE(report.sent_per_step, coded + 1000 * others);
    } else if (is_rank_ordered()) {
      EXPECT_NEAR(static_cast<double>(report.sent_per_step),
                  static_cast<double>(report.expected_sent_per_step), 1e4 * size());
    }
  }
}

TEST_P(CodedTrainingTest, Policies_LeaveParametersAsTheyAre) {
  DistributedOptimizer::Options options = summed(Compression::top_k(0.05));
  options.compression_policy = matrices(400);
  LinearTraining training(options, {{90, 91}, {37, 11}, {513}, {7, 7}, {60, 60}});
  training.run(0, 3);
  const std::vector<at::Tensor> residual_sums = training.residual_sums(folder_.path());
  training.expect_balance(residual_sums, "with a policy");
  for (std::size_t i = 0; i < residual_sums.size(); ++i) {
    const bool is_chosen = i == 0 || i == 1 || i == 4;
    EXPECT_EQ(residual_sums[i].abs().max().item<double>() > 1e-3, is_chosen && is_coded()) << i;
  }
}

TEST_P(CodedTrainingTest, SparseGradients_AreMadeDense_UnlessAPolicyLeavesThemOut) {
  for (const bool leaves_out : {false, true}) {
    DistributedOptimizer::Options options = summed(Compression::top_k(0.3));
    if (leaves_out) {
      options.compression_policy = [](const std::string& name, const at::Tensor&) {
        return name != "weight";
      };
    }
    torch::nn::Embedding table(torch::nn::EmbeddingOptions(50, 3).sparse(true));
    {
      const torch::NoGradGuard no_grad;
      table->weight.zero_();
    }
    torch::optim::SGD inner(table->parameters(), 1.0);
    DistributedOptimizer optimizer(inner, *table, options);
    at::Tensor given = torch::zeros({50, 3});
    for (int step = 0; step < 12; ++step) {
      optimizer.zero_grad();
      const double weight = step < 3 ? 1.0 + step : 0.0;  // then only residuals are applied
      (table->forward(torch::tensor({step % 3, 7 + rank()})) * weight).sum().backward();
      optimizer.step();
      const bool stays_sparse = leaves_out && GetParam() == Shard::None;
      if (GetParam() == Shard::None && step > 0) {
        EXPECT_EQ(table->weight.grad().is_sparse(), stays_sparse) << leaves_out;
      }
      given[step % 3] += weight * size();
      for (int r = 0; r < size(); ++r) given[7 + r] += weight;
    }
    EXPECT_LT(largest_difference(table->weight.detach(), -given), 1e-4);
  }
}

TEST_P(CodedTrainingTest, UnsuitableOptions_AreRefusedOnAllRanks) {
  const auto text_of = [&](const DistributedOptimizer::Options& options) {
    return text_thrown_by<Error>([&] { const LinearTraining training(options); });
  };
  DistributedOptimizer::Options options = summed(Compression::int8());
  if (GetParam() == Shard::None) {
    options.op = ReduceOp::Adasum;
    expect_contains(text_of(options), "for Average and Sum, not Adasum");
  }
  options = summed(is_last() ? Compression::named("int7") : Compression::int8());
  expect_contains(text_of(options), "int7");
  options = summed(Compression::int8());
  options.compression_policy = [&](const std::string&, const at::Tensor&) -> bool {
    if (is_last()) throw std::runtime_error("no idea");
    return true;
  };
  expect_contains(text_of(options), "compression_policy has thrown: no idea");
  if (size() == 1) GTEST_SKIP() << "the rest: one rank differs from nobody";
  options = summed(Compression::int8());
  options.error_feedback = is_last();
  expect_contains(text_of(options), "error_feedback is true");
  options = summed(Compression::int8());
  if (is_last()) options.compression_policy = matrices(400);
  expect_contains(text_of(options), "not compressed");
}

}  // namespace kolo::test::compression_test

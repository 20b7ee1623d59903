// Residuals of codecs in checkpoints: training resumes from them in any mode and at any world size.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/error.hpp"
#include "support/mpi/variants.hpp"
#include "train/compression/coded_training.hpp"

namespace kolo::test::compression_test {

const AlsoIn saved_residuals_in({"uneven", "messages", "nodes"});

class SavedResidualsTest : public CompressionTest {};
INSTANTIATE_TEST_SUITE_P(, SavedResidualsTest, testing::ValuesIn(all_modes()),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(SavedResidualsTest, Training_ResumesExactly) {
  for (const Compression& compression : {Compression::one_bit(), Compression::top_k(0.05)}) {
    LinearTraining before(summed(compression));
    before.run(0, 3);
    before.optimizer().save(folder_.path());
    before.run(3, 5);
    LinearTraining after(summed(compression));
    after.optimizer().load(folder_.path());
    after.run(3, 5);
    for (std::size_t i = 0; i < before.parameters().size(); ++i) {
      EXPECT_TRUE(torch::equal(after.parameters()[i], before.parameters()[i]))
          << compression.name() << ", parameter " << i;
    }
    // Load into a training that already has residuals.
    before.optimizer().load(folder_.path());
    before.run(3, 5);
    EXPECT_TRUE(torch::equal(after.parameters()[0], before.parameters()[0]));
  }
}

TEST_P(SavedResidualsTest, CountedTraining_ResumesExactly) {
  LinearTraining before(summed(Compression::top_k(0.05)));
  before.run_counted(0, 3);
  before.optimizer().save(folder_.path());
  before.run_counted(3, 5);
  LinearTraining after(summed(Compression::top_k(0.05)));
  after.optimizer().load(folder_.path());
  after.run_counted(3, 5);
  for (std::size_t i = 0; i < before.parameters().size(); ++i) {
    EXPECT_TRUE(torch::equal(after.parameters()[i], before.parameters()[i])) << "parameter " << i;
  }
}

TEST_P(SavedResidualsTest, EveryMode_TakesOver) {
  LinearTraining before(summed(Compression::top_k(0.05)));
  before.run(0, 3);
  before.optimizer().save(folder_.path() / "common");
  for (const Shard mode : all_modes()) {
    for (const ShardScope scope : {ShardScope::World, ShardScope::Node}) {
      if (scope == ShardScope::Node && (mode == Shard::None || !is_coded(scope))) continue;
      DistributedOptimizer::Options options = summed(Compression::top_k(0.05));
      options.shard = mode;
      options.shard_scope = scope;
      LinearTraining after(options);
      after.optimizer().load(folder_.path() / "common");
      after.set_given(before.given());
      after.expect_balance(after.residual_sums(folder_.path()), "loaded");
      after.run(3, 5);
      after.expect_balance(after.residual_sums(folder_.path()), std::string(name_of(mode)));
    }
  }
}

TEST_P(SavedResidualsTest, OtherWorldSizes_KeepTheResidual) {
  for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Average}) {
    DistributedOptimizer::Options options = summed(Compression::top_k(0.3));
    options.op = op;
    const auto expect_arrives_on = [&](ProcessSet& set, int saved_ranks,
                                       const std::vector<at::Tensor>& given) {
      if (!set.included()) return;
      LinearTraining after(options, LinearTraining::shapes(), set);
      after.optimizer().load(folder_.path());
      after.run_idle(9);
      after.expect_applied(given, op == ReduceOp::Average ? saved_ranks : 1,
                           std::to_string(saved_ranks) + " to " + std::to_string(set.size()));
    };
    LinearTraining before(options);
    before.run(0, 3);
    before.optimizer().save(folder_.path());
    for (int ranks = 1; ranks < size(); ++ranks) {
      expect_arrives_on(sets_.first(ranks), size(), before.given());
      barrier();
    }
    if (size() < 3) continue;
    std::vector<at::Tensor> given = before.given();
    for (at::Tensor& each : given) each.zero_();
    for (const int r : {0, 1}) {
      for (int step = 0; step < 3; ++step) LinearTraining::add_gradients(given, step, r);
    }
    if (ProcessSet& two = sets_.first(2); two.included()) {
      LinearTraining pair(options, LinearTraining::shapes(), two);
      pair.run(0, 3);
      pair.optimizer().save(folder_.path());
    }
    barrier();
    expect_arrives_on(runtime_.world(), 2, given);
  }
}

TEST_P(SavedResidualsTest, GradientsInFlight_AreNotSaved) {
  LinearTraining training(summed(Compression::top_k(0.05)));
  training.run(0, 2);
  const std::vector<at::Tensor> residual_sums = training.residual_sums(folder_.path());
  const auto expect_the_same = [&](const std::string& when) {
    const std::vector<at::Tensor> now = training.residual_sums(folder_.path());
    for (std::size_t i = 0; i < residual_sums.size(); ++i)
      EXPECT_TRUE(torch::equal(now[i], residual_sums[i])) << when;
  };
  training.optimizer().zero_grad();
  training.backward(2);
  expect_the_same("in flight");
  training.optimizer().synchronize();
  expect_the_same("reduced");
  training.optimizer().step();
  training.count(2);
  training.expect_balance(training.residual_sums(folder_.path()), "stepped");
}

TEST_P(SavedResidualsTest, CheckpointsWithout_ClearThem_AndWithoutACodecTheyAreDropped) {
  LinearTraining plain(summed(Compression::none()));
  plain.run(0, 2);
  plain.optimizer().save(folder_.path());
  LinearTraining coded(summed(Compression::top_k(0.05)));
  coded.run(0, 2);
  coded.optimizer().load(folder_.path());
  EXPECT_EQ(LinearTraining::largest(coded.residual_sums(folder_.path())), 0);
  coded.run(2, 4);
  coded.optimizer().save(folder_.path());
  plain.optimizer().load(folder_.path());
  EXPECT_EQ(LinearTraining::largest(plain.residual_sums(folder_.path())), 0);
}

TEST_P(SavedResidualsTest, ForgedOnes_AreRefusedAndChangeNothing) {
  LinearTraining training(summed(Compression::top_k(0.05)));
  training.run(0, 2);
  const std::vector<at::Tensor> residual_sums = training.residual_sums(folder_.path());
  const CheckpointImage good = read_image(folder_.path());
  const auto expect_refused = [&](const auto& forge, const std::string& text) {
    CheckpointImage image = good;
    forge(image);
    write_image(folder_.path() / "forged", image);
    expect_contains(text_thrown_by<InvalidArgument>(
                        [&] { training.optimizer().load(folder_.path() / "forged"); }),
                    text);
  };
  expect_refused([](auto& image) { image.details["residual_ranks"] = -1; }, "residual_ranks");
  if (is_coded()) {
    expect_refused(
        [](auto& image) {
          image.tensors.at("residual.0.p3") = {DType::Float32, {2}, std::vector<std::byte>(8)};
        },
        "residual.0.p3");
  }
  const std::vector<at::Tensor> now = training.residual_sums(folder_.path());
  for (std::size_t i = 0; i < residual_sums.size(); ++i)
    EXPECT_TRUE(torch::equal(now[i], residual_sums[i])) << i;
}

}  // namespace kolo::test::compression_test

// The Accelerator's batches: which samples they contain, and on which device.
#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "extras/accelerator/accelerator_fixture.hpp"
#include "extras/data/epoch_order.hpp"
#include "kolo/extras/distributed_sampler.hpp"

namespace kolo::test::accelerator_test {

using Samples = std::vector<std::size_t>;

at::Tensor to_tensor(const Samples& samples) {
  return torch::tensor(std::vector<std::int64_t>(samples.begin(), samples.end()), torch::kLong);
}

/// Distinct lengths in no particular order.
Samples lengths(std::size_t count) {
  Samples all;
  for (std::size_t i = 0; i < count; ++i) all.push_back(7 + i * 37 % 1009);
  return all;
}

class AcceleratorBatchesTest : public AcceleratorTest {
 protected:
  /// The samples that all ranks see in a loop over `batches`, in order.
  template <class Dataset>
  at::Tensor seen_in(Batches<Dataset>& batches) {
    std::vector<at::Tensor> seen;
    for (auto& batch : batches) seen.push_back(accelerator_.gather_for_metrics(batch.target));
    return torch::cat(seen);
  }

  Weights model_{22};
  torch::optim::SGD sgd_{model_.parameters(), torch::optim::SGDOptions(1.0)};
  Accelerator accelerator_;
};

TEST_F(AcceleratorBatchesTest, Loop_LooksLikeThatOverALoader) {
  auto batches =
      accelerator_.prepare(model_, sgd_, numbers(22), {.batch_size = 5, .shuffle = false});
  std::vector<at::Tensor> seen;
  for (const torch::data::Example<>& batch : *batches) {
    seen.push_back(accelerator_.gather_for_metrics(batch.target));
  }
  expect_equal(torch::cat(seen), torch::arange(22));
}

/// Unless the program says otherwise; in another order in each epoch, after the seed.
TEST_F(AcceleratorBatchesTest, TrainingIsShuffled_AndEvaluationIsNot) {
  auto batches = accelerator_.prepare(model_, sgd_, numbers(22), {.batch_size = 5, .seed = 7});
  for (const std::int64_t epoch : {0, 1}) {
    const at::Tensor seen = seen_in(batches);
    EXPECT_FALSE(torch::equal(seen, torch::arange(22)));
    expect_equal(seen, to_tensor(extras::shuffled(22).of(7, epoch)));
  }
  auto held_out = accelerator_.batches(numbers(22), {.batch_size = 5});
  expect_equal(seen_in(held_out), torch::arange(22));
  auto drawn = accelerator_.batches(numbers(22), {.batch_size = 5, .shuffle = true, .seed = 7});
  expect_equal(seen_in(drawn), to_tensor(extras::shuffled(22).of(7, 0)));
}

TEST_F(AcceleratorBatchesTest, BatchOfAnySize_HasAllSamples) {
  for (const std::size_t batch_size : {std::size_t{12}, SIZE_MAX / 2 + 1, SIZE_MAX}) {
    Weights model(12);
    torch::optim::SGD sgd(model.parameters(), torch::optim::SGDOptions(1.0));
    Accelerator accelerator({.gradient_accumulation_steps = 2});
    auto batches = accelerator.prepare(model, sgd, numbers(12), {.batch_size = batch_size});
    EXPECT_EQ(batches.size(), 1U);
    for (auto& batch : batches) {
      accelerator.backward(model.mean_weight(batch.target));
      EXPECT_TRUE(accelerator.step());
    }
    EXPECT_LT(largest_difference(model.value(), torch::full({12}, -1.0 / 12)), 1e-6);
  }
}

TEST_F(AcceleratorBatchesTest, Weights_SayHowOftenSamplesAreDrawn) {
  std::vector<double> weights(22, 0.0);
  weights[3] = 1.0;
  weights[20] = 2.5;
  weights[21] = 0.5;
  auto batches = accelerator_.prepare(model_, sgd_, numbers(22),
                                      {.batch_size = 5, .seed = 7, .weights = weights});
  EXPECT_EQ(batches.size(), 5U);
  for (const std::int64_t epoch : {0, 1}) {
    expect_equal(seen_in(batches), to_tensor(extras::weighted(weights, 22).of(7, epoch)));
  }
}

/// The data of a sample are two random numbers.
class NoisyNumbers : public torch::data::datasets::Dataset<NoisyNumbers> {
 public:
  explicit NoisyNumbers(const Accelerator& accelerator) : accelerator_(&accelerator) {}
  torch::data::Example<> get(std::size_t index) override {
    return {torch::rand({2}, accelerator_->sample_generator(index)),
            torch::tensor(static_cast<std::int64_t>(index))};
  }
  std::optional<std::size_t> size() const override { return 22; }

 private:
  const Accelerator* accelerator_;
};

TEST_F(AcceleratorBatchesTest, SampleGenerators_DrawAlikeWithAnyWorkersAndAfterAResume) {
  for (const std::size_t workers : {0U, 1U, 3U}) {
    Weights model(22);
    torch::optim::SGD sgd(model.parameters(), torch::optim::SGDOptions(1.0));
    Accelerator accelerator;
    auto batches = accelerator.prepare(
        model, sgd, NoisyNumbers(accelerator).map(torch::data::transforms::Stack<>()),
        {.batch_size = 5, .seed = 7, .workers = workers});
    accelerator.load_state(folder());  // from the second loop on, in the middle of epoch 0
    for (const std::int64_t epoch : accelerator.epochs(2)) {
      for (auto& batch : batches) {
        for (std::int64_t i = 0; i < batch.target.size(0); ++i) {
          const auto index = static_cast<std::size_t>(batch.target[i].item<std::int64_t>());
          const at::Tensor expected = torch::rand({2}, sample_generator(7, epoch, index));
          EXPECT_TRUE(torch::equal(batch.data[i], expected)) << workers << " " << epoch;
        }
        accelerator.backward(model.mean_weight(batch.target));
        accelerator.step();
        if (workers == 0 && accelerator.steps() == 2) accelerator.save_state(folder());
      }
    }
    EXPECT_EQ(accelerator.steps(), 10);
  }
}

TEST_F(AcceleratorBatchesTest, Lengths_GroupSamplesAndAreDealtOutInTurns) {
  const Samples all = lengths(22);
  auto batches =
      accelerator_.prepare(model_, sgd_, numbers(22), {.batch_size = 5, .seed = 7, .lengths = all});
  for (const std::int64_t epoch : {0, 1}) {
    expect_equal(seen_in(batches), to_tensor(extras::grouped(all, 5, true).of(7, epoch)));
  }
  auto held_out = accelerator_.batches(numbers(22), {.batch_size = 5, .lengths = all});
  expect_equal(seen_in(held_out), to_tensor(extras::grouped(all, 5, false).of(0, 0)));
}

/// Steps of 5, 5, 5, 5 and 2 samples, however they are divided among ranks.
TEST_F(AcceleratorBatchesTest, StepOfDealtSamples_UsesTheirMean) {
  const Samples all = lengths(22);
  auto batches = accelerator_.prepare(model_, sgd_, numbers(22),
                                      {.batch_size = 5, .shuffle = false, .lengths = all});
  for (auto& batch : batches) {
    accelerator_.backward(model_.mean_weight(batch.target));
    accelerator_.step();
  }
  const at::Tensor order = to_tensor(extras::grouped(all, 5, false).of(0, 0));
  at::Tensor expected = torch::full({22}, -0.2);
  expected.index_fill_(0, order.slice(0, 20), -0.5);
  EXPECT_LT(largest_difference(model_.value(), expected), 1e-6);
}

TEST_F(AcceleratorBatchesTest, EvaluationMayHaveFewerSamplesThanRanks) {
  accelerator_.prepare(model_, sgd_, numbers(22), {.batch_size = 5});
  for (const std::size_t samples : {1U, 2U}) {
    for (const std::size_t batch_size : {1U, 8U}) {
      auto held_out = accelerator_.batches(numbers(samples), {.batch_size = batch_size});
      expect_equal(seen_in(held_out), torch::arange(static_cast<std::int64_t>(samples)));
    }
  }
  expect_refused([&] { accelerator_.batches(numbers(0), {.batch_size = 8}); },
                 "the data set has 0 samples");
  expect_refused([&] { accelerator_.batches(numbers(2), {.batch_size = 0}); }, "batch_size is 0");
}

TEST_F(AcceleratorBatchesTest, InvalidOrders_AreRefused) {
  const auto refuse = [&](BatchOptions options, const std::string& text) {
    options.batch_size = 4;
    Accelerator accelerator;
    expect_refused([&] { accelerator.prepare(model_, sgd_, numbers(22), options); }, text);
  };
  std::vector<double> weights(22, 1.0);
  if (is_last()) weights[3] = -1.0;
  const std::string last = "on rank " + std::to_string(size() - 1);
  refuse({.weights = weights}, "prepare(): " + last + ": the weight of sample 3 is -1");
  refuse({.weights = std::vector<double>(22, 0.0)}, "the weights of 22 samples add up to 0");
  refuse({.weights = std::vector<double>(21, 1.0)},
         "weights has 21 values, and the data set 22 samples");
  refuse({.lengths = lengths(23)}, "lengths has 23 values, and the data set 22 samples");
  refuse({.shuffle = false, .weights = std::vector<double>(22, 1.0)}, "shuffle is false");
  refuse({.weights = std::vector<double>(22, 1.0), .lengths = lengths(22)},
         "weights and lengths are given");
  if (size() == 1) GTEST_SKIP() << "the rest: one rank differs from nobody";
  Samples other = lengths(22);
  if (is_last()) ++other[5];
  Accelerator accelerator;
  expect_refused<MismatchError>(
      [&] { accelerator.prepare(model_, sgd_, numbers(22), {.batch_size = 4, .lengths = other}); },
      "the order of samples is grouped by 4");
}

/// The device 'meta', whose tensors have no elements, stands for a GPU.
TEST_F(AcceleratorBatchesTest, TensorsOfABatch_AreMoved) {
  const c10::Device meta("meta");
  std::vector<torch::data::Example<>> examples(2, {torch::ones({3}), torch::Tensor()});
  torch::data::Example<std::vector<at::Tensor>, std::string> mixed({torch::ones({2})}, "name");
  torch::data::TensorExample no_target(torch::ones({1}));
  int number = 3;
  extras::move_to(meta, examples);
  extras::move_to(meta, mixed);
  extras::move_to(meta, no_target);
  extras::move_to(meta, number);
  for (const auto& example : examples) {
    EXPECT_EQ(example.data.device(), meta);
    EXPECT_FALSE(example.target.defined());
  }
  EXPECT_EQ(mixed.data[0].device(), meta);
  EXPECT_EQ(mixed.target, "name");
  EXPECT_EQ(no_target.data.device(), meta);
  EXPECT_EQ(number, 3);
}

TEST_F(AcceleratorTest, Gathering_GivesEverySampleOnceInOrder) {
  Weights model(4);
  torch::optim::SGD sgd(model.parameters(), torch::optim::SGDOptions(1.0));
  Accelerator accelerator;
  auto batches = accelerator.prepare(model, sgd, numbers(9), {.batch_size = 5, .shuffle = false});
  for (const std::size_t workers : {0U, 2U}) {
    // In the last batch, of 2 samples, two of four ranks have none.
    auto held_out = accelerator.batches(numbers(22), {.batch_size = 5, .workers = workers});
    EXPECT_EQ(held_out.size(), 5U);
    for (int loop = 0; loop < 2; ++loop) {
      std::vector<at::Tensor> seen;
      for (auto& batch : held_out) seen.push_back(accelerator.gather_for_metrics(batch.target));
      expect_equal(torch::cat(seen), torch::arange(22));
    }
  }
  // Inside a loop over training batches, which afterwards has its own batch again.
  std::vector<at::Tensor> seen;
  for (auto& batch : batches) {
    auto held_out = accelerator.batches(numbers(6), {.batch_size = 6});
    for (auto& inner : held_out) {
      EXPECT_EQ(accelerator.gather_for_metrics(inner.data).size(0), 6);
    }
    seen.push_back(accelerator.gather_for_metrics(batch.target));
    accelerator.backward(model.mean_weight(torch::zeros({1}, torch::kLong)));
    accelerator.step();
  }
  expect_equal(torch::cat(seen), torch::arange(9));
  expect_refused([&] { accelerator.gather_for_metrics(torch::ones({2})); },
                 "outside of loops over batches");
}

}  // namespace kolo::test::accelerator_test

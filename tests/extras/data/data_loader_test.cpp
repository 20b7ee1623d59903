#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "extras/data/epoch_order.hpp"
#include "extras/data/numbered_data.hpp"
#include "kolo/extras/distributed_sampler.hpp"
#include "kolo/extras/gather_for_metrics.hpp"
#include "kolo/extras/stream_shard.hpp"
#include "kolo/torch/distributed_optimizer.hpp"
#include "train/small_training.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test::data_loader_test {

constexpr std::size_t kSamples = 22;
constexpr std::uint64_t kSeed = 11;

auto loader_of(const DistributedSampler& sampler, std::size_t batch_size, std::size_t workers) {
  return torch::data::make_data_loader(
      NumberedData(kSamples), sampler,
      torch::data::DataLoaderOptions().batch_size(batch_size).workers(workers));
}

/// Each sample's data are two random numbers.
class NoisyData : public torch::data::datasets::Dataset<NoisyData> {
 public:
  explicit NoisyData(DistributedSampler sampler) : sampler_(std::move(sampler)) {}
  Example get(std::size_t index) override {
    return {torch::rand({2}, sampler_.sample_generator(index)),
            torch::tensor(static_cast<std::int64_t>(index))};
  }
  std::optional<std::size_t> size() const override { return kSamples; }

 private:
  DistributedSampler sampler_;
};

/// The samples of `epochs` epochs in order.
Numbers order(std::int64_t epochs) {
  Numbers numbers;
  for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
    for (const std::size_t sample : extras::shuffled(kSamples).of(kSeed, epoch)) {
      numbers.push_back(static_cast<std::int64_t>(sample));
    }
  }
  return numbers;
}

/// A run of training over the data set, among the ranks of a set.
class TrainingRun {
 public:
  TrainingRun(ProcessSet& set, std::size_t workers)
      : model_(1, 1),
        inner_(model_->parameters(), torch::optim::SGDOptions(1e-4)),
        optimizer_(inner_, *model_, {.process_set = &set}),
        sampler_(kSamples, {.seed = kSeed, .process_set = &set}),
        workers_(workers) {}

  void resume(const std::filesystem::path& folder) {
    sampler_.set_state(optimizer_.load(folder).extras.at("sampler"));
  }
  /// Takes `steps` steps, then saves if there is a folder.
  /// @return the samples of all ranks, in order
  Numbers train(std::size_t batch_size, int steps, const std::filesystem::path& folder = {}) {
    const auto loader = loader_of(sampler_, batch_size, workers_);
    Numbers seen;
    while (true) {
      for (const auto& batch : *loader) {
        sampler_.consume();
        const at::Tensor numbers = numbers_of(batch);
        optimizer_.zero_grad();
        model_->forward(numbers.to(at::kFloat).unsqueeze(1)).mean().backward();
        optimizer_.step();
        const Numbers all = to_numbers(gather_for_metrics(numbers, sampler_));
        seen.insert(seen.end(), all.begin(), all.end());
        if (--steps > 0) continue;
        if (!folder.empty()) {
          optimizer_.save(folder, {.extras = {{"sampler", sampler_.state()}}});
        }
        return seen;
      }
    }
  }

 private:
  torch::nn::Linear model_;
  torch::optim::SGD inner_;
  DistributedOptimizer optimizer_;
  DistributedSampler sampler_;
  std::size_t workers_;
};

class DataLoaderTest : public TrainingTest {
 protected:
  /// Trains on one process set, and resumes from its checkpoint on another.
  void expect_resumes(ProcessSet& before, ProcessSet& after, std::size_t workers) {
    const CommonFolder folder;
    Numbers seen;
    if (before.included()) {
      seen = TrainingRun(before, workers).train(2, 2, folder.path());
      EXPECT_EQ(seen.size(), static_cast<std::size_t>(4 * before.size()));
    }
    barrier();
    if (after.included()) {
      TrainingRun run(after, workers);
      run.resume(folder.path());
      const Numbers rest = run.train(1, 2 * static_cast<int>(kSamples));
      seen.insert(seen.end(), rest.begin(), rest.end());
    }
    if (before.included() && after.included()) {
      Numbers expected = order(10);
      expected.resize(seen.size());
      EXPECT_EQ(seen, expected) << before.size() << " ranks, then " << after.size();
    }
    barrier();
  }
};

TEST_F(DataLoaderTest, Epochs_HaveOtherOrdersWithoutSetEpoch) {
  for (const std::size_t workers : {0U, 2U}) {
    const DistributedSampler sampler(kSamples, {.seed = kSeed});
    const auto loader = loader_of(sampler, 3, workers);
    Numbers seen;
    for (int epoch = 0; epoch < 3; ++epoch) {
      Numbers own;
      for (const auto& batch : *loader) {
        for (const std::int64_t number : to_numbers(numbers_of(batch))) own.push_back(number);
      }
      const at::Tensor all = allgather(torch::tensor(own, at::kLong));
      const at::Tensor in_order = all.reshape({size(), -1}).t().flatten();
      const Numbers numbers = to_numbers(in_order.narrow(0, 0, kSamples));
      seen.insert(seen.end(), numbers.begin(), numbers.end());
    }
    EXPECT_EQ(seen, order(3)) << workers;
  }
}

TEST_F(DataLoaderTest, WhatWorkersReadAhead_IsNotConsumed) {
  DistributedSampler sampler(kSamples, {.seed = kSeed});
  const auto loader = loader_of(sampler, 1, 2);
  auto batch = loader->begin();
  EXPECT_EQ(sampler.consumed(), 0U);
  sampler.consume();
  ++batch;
  sampler.consume();
  EXPECT_EQ(sampler.consumed(), 2 * static_cast<std::size_t>(size()));
}

TEST_F(DataLoaderTest, Run_ResumesInMidEpochFromACheckpoint) {
  expect_resumes(runtime_.world(), runtime_.world(), 0);
  expect_resumes(runtime_.world(), runtime_.world(), 2);
}

TEST_F(DataLoaderTest, SampleGenerators_DrawAlikeWithAnyWorkersAndAfterAResume) {
  std::string state;
  for (const std::size_t workers : {0U, 1U, 3U}) {
    DistributedSampler sampler(kSamples, {.seed = kSeed});
    if (!state.empty()) sampler.set_state(state);  // in the middle of epoch 0
    const auto loader = torch::data::make_data_loader(
        NoisyData(sampler), sampler,
        torch::data::DataLoaderOptions().batch_size(2).workers(workers));
    for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
      for (const auto& batch : *loader) {
        sampler.consume();
        for (const Example& example : batch) {
          const auto index = static_cast<std::size_t>(example.target.item<std::int64_t>());
          const at::Tensor expected = torch::rand({2}, kolo::sample_generator(kSeed, epoch, index));
          EXPECT_TRUE(torch::equal(example.data, expected)) << workers << " " << epoch;
        }
        if (state.empty()) state = sampler.state();
      }
    }
  }
  const auto seed_of = [](std::uint64_t seed, std::int64_t epoch, std::size_t index) {
    return kolo::sample_generator(seed, epoch, index).current_seed();
  };
  // Runs of later versions resume with the same numbers.
  EXPECT_EQ(seed_of(7, 3, 5), 17746397239880631399U);
  EXPECT_EQ(
      (std::set{seed_of(0, 0, 0), seed_of(0, 0, 1), seed_of(0, 1, 0), seed_of(1, 0, 0)}).size(),
      4U);
}

TEST_F(DataLoaderTest, LoaderLeftEarlyWithWorkers_IsReplaced) {
  const DistributedSampler sampler(kSamples, {.seed = kSeed});
  const auto left = loader_of(sampler, 2, 2);
  const auto batch = left->begin();
  EXPECT_THROW(left->begin(), c10::Error);  // of LibTorch
  const auto loader = loader_of(sampler, 2, 2);
  loader->begin();
  EXPECT_EQ(sampler.epoch(), 1);
}

TEST_F(DataLoaderTest, Run_ResumesAtFewerAndMoreRanks) {
  if (size() == 1) GTEST_SKIP() << "one rank is the fewest";
  std::vector<int> members(static_cast<std::size_t>(size() - 1));
  std::iota(members.begin(), members.end(), 0);
  ProcessSet& fewer = runtime_.add_process_set(members);
  expect_resumes(runtime_.world(), fewer, 2);
  expect_resumes(fewer, runtime_.world(), 2);
}

TEST_F(DataLoaderTest, DropLastOfTheLoader_EndsEpochsByEndEpoch) {
  DistributedSampler sampler(kSamples, {.seed = kSeed});
  const auto loader = torch::data::make_data_loader(
      NumberedData(kSamples), sampler,
      torch::data::DataLoaderOptions().batch_size(4).workers(1).drop_last(true));
  int batches = 0;
  while (sampler.epoch() < 3) {
    for (const auto& batch : *loader) {
      EXPECT_EQ(sampler.consume().samples, batch.size());
      ++batches;
    }
    sampler.end_epoch();
  }
  const int samples_of_a_rank = (static_cast<int>(kSamples) + size() - 1) / size();
  EXPECT_EQ(batches, 3 * (samples_of_a_rank / 4));
}

TEST_F(DataLoaderTest, Archives_HoldTheState) {
  DistributedSampler sampler(kSamples, {.seed = kSeed});
  sampler.next(2);
  sampler.consume();
  std::stringstream stream;
  torch::save(sampler, stream);
  DistributedSampler other(kSamples, {.seed = kSeed});
  torch::load(other, stream);
  EXPECT_EQ(other.state(), sampler.state());
  EXPECT_EQ(other.consumed(), 2 * static_cast<std::size_t>(size()));
}

TEST_F(DataLoaderTest, AnotherSizeAndNone_AreRefused) {
  DistributedSampler sampler(kSamples);
  sampler.reset(kSamples);
  expect_contains(text_thrown_by<InvalidArgument>([&] { sampler.reset(kSamples + 1); }),
                  "the new size is 23, and the sampler was made for 22 samples");
  expect_contains(text_thrown_by<InvalidArgument>([] { DistributedSampler(0); }),
                  "an epoch has 0 samples");
  expect_contains(text_thrown_by<InvalidArgument>([] { DistributedSampler::weighted({1.0}, 0); }),
                  "an epoch has 0 samples");
  expect_contains(text_thrown_by<InvalidArgument>([] { DistributedSampler::grouped({}, 4); }),
                  "an epoch has 0 samples");
  const auto too_few = static_cast<std::size_t>(size() - 1);
  EXPECT_THROW(DistributedSampler(too_few, {.drop_last = true}), InvalidArgument);
  expect_contains(text_thrown_by<InvalidArgument>(
                      [] { DistributedSampler::weighted({1.0}, 3, {.shuffle = false}); }),
                  "shuffle is false");
}

TEST_F(DataLoaderTest, WeightedAndGrouped_AgreeOnAllRanks) {
  const std::vector<double> weights{1, 0, 2.5, 0.5};
  DistributedSampler weighted = DistributedSampler::weighted(weights, 12, {.seed = 7});
  const std::vector<std::size_t> lengths{5, 3, 9, 1, 7, 7, 2, 8, 4, 6, 0, 3};
  DistributedSampler grouped = DistributedSampler::grouped(lengths, 4, {.seed = 7});
  const auto gathered = [](DistributedSampler& sampler) {
    const std::vector<std::size_t> samples = sampler.next(12).value();
    const Numbers own(samples.begin(), samples.end());
    sampler.consume();
    return to_numbers(gather_for_metrics(torch::tensor(own, at::kLong), sampler));
  };
  const auto expected = [](const std::vector<std::size_t>& samples) {
    return Numbers(samples.begin(), samples.end());
  };
  EXPECT_EQ(gathered(weighted), expected(extras::weighted(weights, 12).of(7, 0)));
  EXPECT_EQ(gathered(grouped), expected(extras::grouped(lengths, 4, true).of(7, 0)));
}

TEST_F(DataLoaderTest, Streams_AreCutByRankAndResumed) {
  constexpr std::size_t kElements = 31;
  const auto options = torch::data::DataLoaderOptions().batch_size(2).workers(1);
  StreamShard shard({.block = 2});
  Numbers own;
  {
    const auto loader = torch::data::make_data_loader(NumberedStream(kElements, shard), options);
    const std::vector<Example> batch = *loader->begin();
    shard.consume(batch.size());
    own = to_numbers(numbers_of(batch));
  }
  StreamShard resumed;
  resumed.set_state(shard.state());
  EXPECT_EQ(resumed.start(), 2 * static_cast<std::size_t>(size()));
  const auto loader = torch::data::make_data_loader(NumberedStream(kElements, resumed), options);
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (const auto& batch : *loader) {
      for (const std::int64_t number : to_numbers(numbers_of(batch))) own.push_back(number);
    }
    Numbers all = to_numbers(allgather(torch::tensor(own, at::kLong)));
    std::ranges::sort(all);
    EXPECT_EQ(all, to_numbers(torch::arange(static_cast<std::int64_t>(kElements)))) << epoch;
    own.clear();
    resumed.end_epoch();
  }
}

}  // namespace kolo::test::data_loader_test

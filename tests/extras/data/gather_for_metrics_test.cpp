#include "kolo/extras/gather_for_metrics.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "extras/data/epoch_order.hpp"
#include "extras/data/numbered_data.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test::gather_for_metrics_test {

at::Tensor to_tensor(const std::vector<std::size_t>& samples) {
  std::vector<std::int64_t> numbers(samples.begin(), samples.end());
  return torch::tensor(numbers, at::kLong);
}

class GatherForMetricsTest : public TrainingTest {
 protected:
  /// Takes and consumes the sampler's next batch, as a tensor [samples].
  static at::Tensor take(DistributedSampler& sampler, std::size_t batch_size) {
    const std::vector<std::size_t> samples = sampler.next(batch_size).value();
    sampler.consume();
    return to_tensor(samples);
  }
};

TEST_F(GatherForMetricsTest, Rows_AreInTheOrderOfTheEpochWithoutPadding) {
  for (std::size_t samples = 1; samples <= 13; ++samples) {
    DistributedSampler sampler(samples, {.seed = 3});
    for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
      sampler.reset();
      std::vector<at::Tensor> gathered;
      while (sampler.epoch() == epoch) {
        const at::Tensor numbers = take(sampler, 2);
        const at::Tensor rows = torch::stack({numbers, -numbers}, 1).to(at::kFloat);
        const auto both = gather_for_metrics({numbers, rows}, sampler);
        expect_equal(both.at(1), torch::stack({both.at(0), -both.at(0)}, 1).to(at::kFloat));
        gathered.push_back(both.at(0));
      }
      expect_equal(torch::cat(gathered), to_tensor(extras::shuffled(samples).of(3, epoch)));
    }
  }
}

/// On rank r, each sample has r + 1 and 3 numbers, or r + 1 and 4 on the last rank.
TEST_F(GatherForMetricsTest, RaggedRows_ArePaddedToTheLargest) {
  DistributedSampler sampler(static_cast<std::size_t>(size()), {.shuffle = false});
  take(sampler, 1);
  const at::Tensor ragged = torch::full({1, rank() + 1, is_last() ? 4 : 3}, rank());
  at::Tensor expected = torch::full({size(), size(), 4}, -7);
  for (int i = 0; i < size(); ++i) {
    expected[i].narrow(0, 0, i + 1).narrow(1, 0, i + 1 == size() ? 4 : 3).fill_(i);
  }
  expect_equal(gather_for_metrics(pad_across_ranks(ragged, -7), sampler), expected);
  expect_equal(pad_across_ranks(torch::arange(rank())), torch::arange(rank()));
}

TEST_F(GatherForMetricsTest, DropLast_DropsNoRowThatWasSeen) {
  const std::size_t ranks = static_cast<std::size_t>(size());
  DistributedSampler sampler(5 * ranks + ranks - 1, {.shuffle = false, .drop_last = true});
  const std::int64_t rows = std::int64_t{5} * size();
  expect_equal(gather_for_metrics(take(sampler, 9), sampler), torch::arange(rows));
}

TEST_F(GatherForMetricsTest, ProcessSets_GatherAmongTheirRanks) {
  std::vector<int> even;
  for (int rank = 0; rank < size(); rank += 2) even.push_back(rank);
  ProcessSet& set = runtime_.add_process_set(even);
  if (!set.included()) {
    expect_contains(
        text_thrown_by<InvalidArgument>([&] { DistributedSampler(3, {.process_set = &set}); }),
        "process set");
    return;
  }
  DistributedSampler sampler(3, {.shuffle = false, .process_set = &set});
  expect_equal(gather_for_metrics(take(sampler, 3), sampler), torch::arange(3));
}

TEST_F(GatherForMetricsTest, Gradients_DoNotPass) {
  DistributedSampler sampler(7, {});
  const at::Tensor rows = take(sampler, 1).to(at::kFloat).requires_grad_();
  EXPECT_FALSE(gather_for_metrics(rows, sampler).requires_grad());
}

TEST_F(GatherForMetricsTest, BatchesThatNobodyConsumed_AreRefusedOnAllRanks) {
  DistributedSampler sampler(40, {});
  sampler.next(2);
  if (!is_last()) sampler.consume();
  expect_refused([&] { gather_for_metrics(torch::zeros({2}), sampler); },
                 "gather_for_metrics: on rank " + std::to_string(size() - 1) +
                     ": the sampler has no batch that was consumed. Call its consume()");
}

TEST_F(GatherForMetricsTest, OtherRowsThanTheBatchHas_AreRefusedOnAllRanks) {
  DistributedSampler sampler(40, {});
  const at::Tensor numbers = take(sampler, 3);
  const std::string on = "on rank " + std::to_string(size() - 1) + ": a tensor ";
  expect_refused([&] { gather_for_metrics(is_last() ? torch::zeros({4, 2}) : numbers, sampler); },
                 on + "has 4 rows, and the batch consumed last has 3 samples");
  expect_refused([&] { gather_for_metrics(is_last() ? torch::zeros({}) : numbers, sampler); },
                 on + "is a scalar");
  expect_refused([&] { gather_for_metrics(is_last() ? at::Tensor() : numbers, sampler); },
                 on + "is undefined");
}

TEST_F(GatherForMetricsTest, RanksThatConsumedOtherBatches_AreRefused) {
  DistributedSampler sampler(40, {});
  if (size() == 1) GTEST_SKIP() << "one rank disagrees with nobody";
  const at::Tensor numbers = take(sampler, 2);
  if (rank() == 0) take(sampler, 2);
  expect_refused<MismatchError>([&] { gather_for_metrics(numbers, sampler); },
                                "the sampler's position is ");
  DistributedSampler seeded(40, {.seed = rank() == 0 ? 1U : 2U});
  const at::Tensor others = take(seeded, 2);
  expect_refused<MismatchError>([&] { gather_for_metrics(others, seeded); }, "\"seed\":1");
}

}  // namespace kolo::test::gather_for_metrics_test

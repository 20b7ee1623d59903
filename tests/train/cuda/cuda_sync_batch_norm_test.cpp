// SyncBatchNorm on GPUs, where backward() runs on a thread of the device.
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/error.hpp"
#include "kolo/extras/sync_batch_norm.hpp"
#include "train/cuda/cuda_training.hpp"

namespace kolo::test::cuda_sync_batch_norm_test {

using Tensors = std::vector<at::Tensor>;

constexpr std::int64_t kChannels = 4;

/// A rank's rows in a step. The last of several ranks has none in the second step.
std::int64_t rows_in(int step, int rank, int size) {
  return step == 1 && size > 1 && rank == size - 1 ? 0 : 3 + rank;
}

at::Tensor pixels(int step, std::int64_t first, std::int64_t rows) {
  return batch_rows(step, first, rows, kChannels * 6, at::kFloat).view({rows, kChannels, 2, 3});
}

/// One process on the CPU with the rows of all ranks: outputs, gradients of the input, and finally
/// the running statistics.
Tensors run_alone(int size) {
  torch::nn::BatchNorm2d norm(kChannels);
  Tensors results;
  for (int step = 0; step < kSteps; ++step) {
    std::int64_t rows = 0;
    for (int rank = 0; rank < size; ++rank) rows += rows_in(step, rank, size);
    const at::Tensor input = pixels(step, 0, rows).requires_grad_();
    const at::Tensor output = norm->forward(input);
    output.backward(pixels(step + 7, 0, rows));
    results.insert(results.end(), {output.detach(), input.grad()});
  }
  results.insert(results.end(), {norm->running_mean, norm->running_var});
  return results;
}

/// The same for one rank with its own rows. `firsts` is set to the index of its first row in each
/// step.
Tensors run_rank(const CudaRank& rank, std::vector<std::int64_t>& firsts) {
  SyncBatchNorm norm(kChannels);
  norm->to(rank.device());
  Tensors inputs, factors, results;
  for (int step = 0; step < kSteps; ++step) {
    firsts.push_back(0);
    for (int other = 0; other < rank.rank(); ++other) {
      firsts.back() += rows_in(step, other, rank.size());
    }
    const std::int64_t rows = rows_in(step, rank.rank(), rank.size());
    inputs.push_back(pixels(step, firsts.back(), rows).to(rank.device()).requires_grad_());
    factors.push_back(pixels(step + 7, firsts.back(), rows).to(rank.device()));
  }
  for (std::size_t step = 0; step < inputs.size(); ++step) {
    const int host_syncs = rank.host_syncs();
    const at::Tensor output = norm->forward(inputs[step]);
    output.backward(factors[step]);
    results.insert(results.end(), {output.detach(), inputs[step].grad()});
    // A rank without rows waits to learn whether others have any.
    EXPECT_EQ(rank.host_syncs() - host_syncs, inputs[step].numel() > 0 ? 0 : 1);
  }
  results.insert(results.end(), {norm->running_mean, norm->running_var});
  for (at::Tensor& result : results) result = result.cpu();
  return results;
}

TEST(CudaSyncBatchNormTest, Steps_AreThoseOfOneProcessWithAllRows) {
  for (const int size : {1, 3}) {
    run_cuda_ranks(size, [&](CudaRank& rank) {
      std::vector<std::int64_t> firsts;
      const Tensors results = run_rank(rank, firsts);
      const Tensors expected = run_alone(size);
      for (std::size_t i = 0; i < results.size(); ++i) {
        const std::size_t step = i / 2;
        const at::Tensor own = step < firsts.size()
                                   ? expected[i].narrow(0, firsts[step], results[i].size(0))
                                   : expected[i];
        EXPECT_TRUE(at::allclose(results[i], own, 1e-5, 1e-6)) << i;
      }
    });
  }
}

TEST(CudaSyncBatchNormTest, HalfPrecision_KeepsFloat32Statistics) {
  run_cuda_ranks(2, [&](CudaRank& rank) {
    SyncBatchNorm norm(kChannels);
    norm->to(rank.device());
    const at::Tensor input =
        pixels(rank.rank(), 0, 4).to(at::kHalf).to(rank.device()).requires_grad_();
    const at::Tensor output = norm->forward(input);
    EXPECT_EQ(output.scalar_type(), at::kHalf);
    output.sum().backward();
    EXPECT_EQ(input.grad().scalar_type(), at::kHalf);
    EXPECT_EQ(norm->weight.grad().scalar_type(), at::kFloat);
    const at::Tensor all = at::cat({pixels(0, 0, 4), pixels(1, 0, 4)}).to(at::kHalf).to(at::kFloat);
    EXPECT_TRUE(at::allclose(norm->running_mean.cpu(), all.mean({0, 2, 3}) * 0.1, 1e-5, 1e-6));
  });
}

TEST(CudaSyncBatchNormTest, InputOnAnotherDevice_IsRefused) {
  run_cuda_ranks(2, [&](CudaRank& rank) {
    SyncBatchNorm norm(kChannels);
    const at::Tensor input = pixels(0, 0, 4).to(rank.device());
    const std::string text = text_thrown_by<InvalidArgument>([&] { norm->forward(input); });
    expect_contains(text, "the module's tensors are Float on cpu");
  });
}

}  // namespace kolo::test::cuda_sync_batch_norm_test

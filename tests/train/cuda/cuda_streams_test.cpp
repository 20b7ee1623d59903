// Training on CUDA tensors, on the fake GPU: several streams, other reductions, early destruction.
#include <chrono>
#include <thread>
#include <vector>

#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/extras/power_sgd.hpp"
#include "kolo/torch/tensor_collectives.hpp"
#include "train/cuda/cuda_training.hpp"

namespace kolo::test::cuda_streams_test {

class CudaStreamsTest : public testing::TestWithParam<Shard> {};
INSTANTIATE_TEST_SUITE_P(Modes, CudaStreamsTest, every_mode(), name_of_mode);

/// Runs each layer on its own stream. Returns all results, which the program must keep until the
/// streams are done; Kolo does not.
std::vector<at::Tensor> forward_on(const std::vector<c10::Stream>& streams,
                                   torch::nn::Sequential& model, const CudaRank& rank,
                                   const at::Tensor& rows) {
  std::vector<at::Tensor> values{rows};
  c10::Stream last = current_stream(rank);
  for (torch::nn::AnyModule& layer : *model) {
    const c10::Stream stream = streams[values.size() % streams.size()];
    order(last, stream);
    const c10::StreamGuard guard(stream);
    values.push_back(layer.forward(values.back()));
    last = stream;
  }
  order(last, current_stream(rank));
  return values;
}

TEST_P(CudaStreamsTest, Forward_MayRunOnSeveralStreams) {
  const at::Tensor expected = train_alone(Algorithm::Sgd, 2, kSteps);
  run_cuda_ranks(2, [&](CudaRank& rank) {
    torch::nn::Sequential model = make_model();
    model->to(rank.device());
    const std::vector<c10::Stream> streams{new_stream(rank), new_stream(rank), new_stream(rank)};
    // backward() accumulates a parameter's gradients on the stream of its first use.
    const auto first = forward_on(streams, model, rank, rows_of(rank, 0));
    const auto sgd = make_optimizer(Algorithm::Sgd, model->parameters());
    DistributedOptimizer::Options options = options_of(rank, GetParam());
    options.bucket_bytes = 4000;  // buckets span several layers
    DistributedOptimizer optimizer(*sgd, *model, options);
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      const auto values = forward_on(streams, model, rank, rows_of(rank, step));
      torch::mse_loss(values.back(), values.front().narrow(1, 0, 3)).backward();
      optimizer.step();
      for (const c10::Stream& stream : streams) order(stream, current_stream(rank));
      for (const c10::Stream& stream : streams) order(current_stream(rank), stream);
    }
    EXPECT_LT(largest_difference(flat(*model).cpu(), expected), 1e-5);
  });
}

TEST_P(CudaStreamsTest, Destruction_IsPossibleWhileGradientsAreReduced) {
  run_cuda_ranks(2, [&](CudaRank& rank) {
    {
      CudaTraining training(rank, Algorithm::Sgd, options_of(rank, GetParam()));
      for (int step = 0; step < 3; ++step) training.step(rank, step);
      training.compute_gradients(rank, 3);
    }
    at::Tensor others = torch::full({4096}, 1.0 + rank.rank(), rank.options());
    allreduce_(others, {.process_set = &rank.world()});
    EXPECT_TRUE(at::equal(others.cpu(), torch::full({4096}, 1.5)));
  });
}

TEST(CudaOptimizerHybridTest, Shards_AreReducedInsideNodesAndBetweenThem) {
  const at::Tensor expected = train_alone(Algorithm::AdamW, 4, kSteps);
  for (const Shard shard : {Shard::Optimizer, Shard::Gradients, Shard::Full}) {
    Setting setting = cuda_setting(4);
    setting.network.nodes = 2;
    setting.network.gpus_per_rank = 2;  // a rank's GPU has its number in the world
    run_cuda_ranks(setting, [&](CudaRank& rank) {
      DistributedOptimizer::Options options = options_of(rank, shard);
      options.shard_scope = ShardScope::Node;
      CudaTraining training(rank, Algorithm::AdamW, options);
      // Delays the first parameter until inter-node reductions of other buckets have begun.
      training.model->parameters().front().register_hook(
          [](const at::Tensor&) { std::this_thread::sleep_for(std::chrono::milliseconds(30)); });
      for (int step = 0; step < kSteps; ++step) training.step(rank, step);
      expect_close(training, expected);
    });
  }
}

TEST(CudaOptimizerDirectTest, RankOrderedSums_HaveTheSameBitsInAllModes) {
  Setting setting = cuda_setting(3);
  setting.config.algorithm = "allreduce:direct,reduce_scatter:direct";
  std::vector<at::Tensor> ends;
  for (const Shard shard : {Shard::None, Shard::Optimizer, Shard::Gradients, Shard::Full}) {
    run_cuda_ranks(setting, [&](CudaRank& rank) {
      CudaTraining training(rank, Algorithm::AdamW, options_of(rank, shard));
      for (int step = 0; step < kSteps; ++step) training.step(rank, step);
      const at::Tensor end = flat(*training.model).cpu();  // on all ranks, since Full gathers it
      if (rank.rank() == 1) ends.push_back(end);
    });
  }
  EXPECT_TRUE(at::equal(ends[0], ends[1]));
  EXPECT_TRUE(at::equal(ends[0], ends[2]));
  EXPECT_TRUE(at::equal(ends[0], ends[3]));
}

TEST(CudaOptimizerHookTest, Hook_ReducesBucketsInItsOwnWay) {
  const at::Tensor expected = train_alone(Algorithm::Sgd, 2, kSteps, [](auto& model) {
    for (const at::Tensor& parameter : model->parameters()) parameter.mutable_grad().mul_(2.0);
  });
  run_cuda_ranks(2, [&](CudaRank& rank) {
    CudaTraining training(rank, Algorithm::Sgd, options_of(rank, Shard::None));
    training.optimizer->register_bucket_hook([&](const GradientBucket& bucket) {
      at::Tensor gradients = bucket.gradients;
      return allreduce_async_(
          gradients, {.op = ReduceOp::Sum, .name = bucket.name, .process_set = &rank.world()});
    });
    for (int step = 0; step < kSteps; ++step) training.step(rank, step);
    expect_close(training, expected);
  });
}

TEST(CudaOptimizerHookTest, PowerSgd_ReducesSmallMatricesAsOnTheCpu) {
  for (const int ranks : {2, 3}) {
    run_cuda_ranks(ranks, [&](CudaRank& rank) {
      const at::Tensor weight = torch::zeros({24, 20}, rank.options()).requires_grad_();
      torch::optim::SGD sgd({weight}, torch::optim::SGDOptions(1.0));
      DistributedOptimizer optimizer(sgd, {{"weight", weight}}, options_of(rank, Shard::None));
      const PowerSgd power_sgd({.rank = 2, .start_step = 0, .process_set = &rank.world()});
      optimizer.register_bucket_hook(power_sgd.hook());
      // A matrix of rank 1, so two columns can represent it exactly.
      const at::Tensor column = torch::arange(1, 25, at::kFloat).unsqueeze(1);
      const at::Tensor row = torch::arange(1, 21, at::kFloat).unsqueeze(0) / 100;
      const at::Tensor gradient = (column * row * (rank.rank() + 1)).to(rank.device());
      for (int step = 1; step <= 3; ++step) {
        optimizer.zero_grad();
        (weight * gradient).sum().backward();
        optimizer.step();
        EXPECT_TRUE(at::allclose(weight.detach().cpu(), -column * row * step * (ranks + 1) / 2.0,
                                 1e-3, 1e-4));
      }
    });
  }
}

}  // namespace kolo::test::cuda_streams_test

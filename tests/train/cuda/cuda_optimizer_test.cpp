// DistributedOptimizer on CUDA tensors, on the fake GPU: trains in every mode like one process on
// the CPU, without hazards and without blocking a host.
#include <algorithm>
#include <latch>
#include <limits>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/error.hpp"
#include "kolo/torch/grad_scaler.hpp"
#include "kolo/torch/tensor_collectives.hpp"
#include "support/errors.hpp"
#include "train/cuda/cuda_training.hpp"

namespace kolo::test::cuda_optimizer_test {

struct Case {
  int ranks;
  Shard shard;
  Algorithm algorithm;
  bool fused = false;
  bool offload = false;
};
void PrintTo(const Case& tried, std::ostream* out) {
  *out << tried.ranks << " ranks, " << name_of(tried.shard) << ", " << name_of(tried.algorithm)
       << (tried.fused ? ", fused" : "") << (tried.offload ? ", offloaded" : "");
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const int ranks : {1, 2, 3, 4}) {
    for (const Shard shard : {Shard::None, Shard::Optimizer, Shard::Gradients, Shard::Full}) {
      cases.push_back({ranks, shard, Algorithm::Sgd});
      cases.push_back({ranks, shard, Algorithm::AdamW});
    }
  }
  for (const Shard shard : {Shard::None, Shard::Gradients, Shard::Full}) {
    cases.push_back({2, shard, Algorithm::AdamW, true});
    cases.push_back({3, shard, Algorithm::Sgd, true});
  }
  for (const Shard shard : {Shard::Optimizer, Shard::Gradients, Shard::Full}) {
    cases.push_back({3, shard, Algorithm::AdamW, false, true});
    cases.push_back({2, shard, Algorithm::AdamW, true, true});
  }
  return cases;
}

void expect_state_on_cpu(torch::optim::Optimizer& optimizer) {
  EXPECT_FALSE(optimizer.state().empty());
  for (const auto& [key, state] : optimizer.state()) {
    const at::Tensor average = static_cast<torch::optim::AdamWParamState&>(*state).exp_avg();
    EXPECT_TRUE(!average.defined() || average.is_cpu());
  }
}

class CudaOptimizerTest : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Cases, CudaOptimizerTest, testing::ValuesIn(all_cases()));

TEST_P(CudaOptimizerTest, Training_EqualsOneProcessAndMakesNoHostWait) {
  const Case& tried = GetParam();
  const at::Tensor expected = train_alone(tried.algorithm, tried.ranks, kSteps);
  run_cuda_ranks(tried.ranks, [&](CudaRank& rank) {
    const c10::StreamGuard guard(new_stream(rank));
    DistributedOptimizer::Options options = options_of(rank, tried.shard);
    options.fused = tried.fused;
    options.offload = tried.offload;
    CudaTraining training(rank, tried.algorithm, options);
    std::vector<at::Tensor> batches;
    for (int step = 0; step < kSteps; ++step) batches.push_back(rows_of(rank, step));
    int waited = 0;
    for (int step = 0; step < kSteps; ++step) {
      if (step == 2) waited = rank.host_syncs();
      training.optimizer->zero_grad();
      loss_of(training.model, batches[static_cast<std::size_t>(step)]).backward();
      training.optimizer->step();
    }
    if (tried.offload) {
      expect_state_on_cpu(*training.wrapped);
    } else {
      EXPECT_EQ(rank.host_syncs(), waited);
    }
    expect_close(training, expected);
  });
}

class CudaModesTest : public testing::TestWithParam<Shard> {};
INSTANTIATE_TEST_SUITE_P(Modes, CudaModesTest, every_mode(), name_of_mode);

TEST_P(CudaModesTest, Clipping_UsesTheNormOfAllRanks) {
  const at::Tensor expected = train_alone(Algorithm::Sgd, 3, kSteps, [](auto& model) {
    torch::nn::utils::clip_grad_norm_(model->parameters(), 0.1);
  });
  run_cuda_ranks(3, [&](CudaRank& rank) {
    CudaTraining training(rank, Algorithm::Sgd, options_of(rank, GetParam()));
    for (int step = 0; step < kSteps; ++step) {
      training.compute_gradients(rank, step);
      EXPECT_GT(training.optimizer->clip_grad_norm_(0.1), 0.1);
      training.optimizer->step();
    }
    expect_close(training, expected);
  });
}

TEST_P(CudaModesTest, OverflowOnOneRank_SkipsTheStepOnAll) {
  const at::Tensor expected = train_alone(Algorithm::Sgd, 2, kSteps);
  run_cuda_ranks(2, [&](CudaRank& rank) {
    CudaTraining training(rank, Algorithm::Sgd, options_of(rank, GetParam()));
    GradScaler scaler;
    const double scale = scaler.get_scale();
    for (int step = 0; step < kSteps; ++step) {
      training.optimizer->zero_grad();
      scaler.scale(loss_of(training.model, rows_of(rank, step))).backward();
      EXPECT_TRUE(scaler.step(*training.optimizer));
      scaler.update();
      if (step != 3) continue;
      training.optimizer->zero_grad();
      at::Tensor loss = loss_of(training.model, rows_of(rank, step));
      if (rank.rank() == 1) loss = loss * std::numeric_limits<float>::infinity();
      scaler.scale(loss).backward();
      EXPECT_FALSE(scaler.step(*training.optimizer));
      scaler.update();
      EXPECT_EQ(scaler.get_scale(), scale / 2);
    }
    expect_close(training, expected);
  });
}

TEST_P(CudaModesTest, Gradients_AddUpOverPasses) {
  const at::Tensor expected = train_alone(Algorithm::Sgd, 2, kSteps);
  run_cuda_ranks(2, [&](CudaRank& rank) {
    DistributedOptimizer::Options options = options_of(rank, GetParam());
    options.backward_passes_per_step = 2;
    if (GetParam() == Shard::Gradients) options.accumulation = Accumulation::Reduced;
    CudaTraining training(rank, Algorithm::Sgd, options);
    for (int step = 0; step < kSteps; ++step) {
      training.optimizer->zero_grad();
      for (const double share : {0.25, 0.75}) {  // both passes must count
        (loss_of(training.model, rows_of(rank, step)) * share).backward();
      }
      training.optimizer->step();
    }
    expect_close(training, expected);
  });
}

TEST_P(CudaModesTest, ParametersWithoutGradientsOnSomeRanks_Train) {
  run_cuda_ranks(3, [&](CudaRank& rank) {
    torch::nn::ParameterDict model;
    for (const char* name : {"a", "b", "c"}) {
      model->insert(name, torch::ones({5}, rank.options()).requires_grad_());
    }
    torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(1.0));
    DistributedOptimizer optimizer(sgd, *model, options_of(rank, GetParam()));
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      // All ranks have a gradient for a, one rank for b, none for c.
      at::Tensor loss = (*model)["a"].sum() * (1.0 + rank.rank());
      if (rank.rank() == step % 3) loss = loss + (*model)["b"].sum() * 3.0;
      loss.backward();
      optimizer.step();
    }
    EXPECT_TRUE(at::allclose((*model)["a"].cpu(), torch::full({5}, 1.0 - 4 * 2.0)));
    EXPECT_TRUE(at::allclose((*model)["b"].cpu(), torch::full({5}, 1.0 - 4 * 1.0)));
    EXPECT_TRUE(at::equal((*model)["c"].cpu(), torch::ones({5})));
  });
}

/// Rank r takes 2 + r steps; then all ranks take one more.
TEST_P(CudaModesTest, RanksWithFewerSteps_Join) {
  constexpr int kRanks = 3;
  torch::nn::Sequential alone = make_model();
  const auto sgd = make_optimizer(Algorithm::Sgd, alone->parameters());
  const auto step_alone = [&](int step, int first_rank) {
    sgd->zero_grad();
    for (int r = first_rank; r < kRanks; ++r) {
      const at::Tensor rows = batch_rows(step, kRows * r, kRows, kWidth, at::kFloat);
      (loss_of(alone, rows) / kRanks).backward();
    }
    sgd->step();
  };
  for (int step = 0; step < 1 + kRanks; ++step) step_alone(step, std::max(0, step - 1));
  const at::Tensor joined = flat(*alone).clone();
  step_alone(9, 0);
  run_cuda_ranks(kRanks, [&](CudaRank& rank) {
    CudaTraining training(rank, Algorithm::Sgd, options_of(rank, GetParam()));
    for (int step = 0; step < 2 + rank.rank(); ++step) training.step(rank, step);
    EXPECT_EQ(training.optimizer->join(), kRanks - 1);
    expect_close(training, joined);
    const at::Tensor own = flat(*training.model);
    const at::Tensor first = broadcast(own, 0, {.process_set = &rank.world()});
    EXPECT_TRUE(at::equal(own.cpu(), first.cpu()));
    training.step(rank, 9);
    expect_close(training, flat(*alone));
  });
}

/// A kernel for each bucket, which copies its gradients and applies the average's factor.
TEST_P(CudaModesTest, Buckets_AreFilledByOneKernel) {
  run_cuda_ranks(3, [&](CudaRank& rank) {
    DistributedOptimizer::Options options = options_of(rank, GetParam());
    options.bucket_bytes = 1 << 20;
    CudaTraining training(rank, Algorithm::Sgd, options);
    training.step(rank, 0);
    training.step(rank, 1);
    const int before = rank.calls().kernels;
    training.step(rank, 2);
    EXPECT_EQ(rank.calls().kernels - before, 1);
  });
}

/// A third of each would be rounded before the sum.
TEST_P(CudaModesTest, AveragesInRankOrder_AreDividedAfterTheSum) {
  Setting setting = cuda_setting(3);
  setting.config.algorithm = "allreduce:direct,reduce_scatter:direct";
  run_cuda_ranks(setting, [&](CudaRank& rank) {
    const auto gradient_of = [](int r) {
      return at::arange(1, 100) * (0.1F * static_cast<float>(r + 1));
    };
    const at::Tensor parameter = torch::zeros({99}, rank.options()).requires_grad_();
    torch::optim::SGD sgd({parameter}, torch::optim::SGDOptions(1.0));
    torch::nn::ParameterDict model;
    model->insert("p", parameter);
    DistributedOptimizer optimizer(sgd, *model, options_of(rank, GetParam()));
    const at::Tensor own = gradient_of(rank.rank()).to(at::kFloat).to(rank.device());
    ((*model)["p"] * own).sum().backward();
    optimizer.step();
    at::Tensor sum = gradient_of(0).to(at::kFloat);
    for (const int r : {1, 2}) sum = sum + gradient_of(r).to(at::kFloat);
    EXPECT_TRUE(at::equal((*model)["p"].cpu(), -(sum * (1.0F / 3.0F))));
  });
}

TEST_P(CudaModesTest, Average_DividesByTheActiveRanks) {
  const at::Tensor expected = train_alone(Algorithm::Sgd, 2, kSteps);
  run_cuda_ranks(3, [&](CudaRank& rank) {
    DistributedOptimizer::Options options = options_of(rank, GetParam());
    options.join_divisor = JoinDivisor::Active;
    CudaTraining training(rank, Algorithm::Sgd, options);
    for (int step = 0; rank.rank() < 2 && step < kSteps; ++step) training.step(rank, step);
    training.optimizer->join();
    expect_close(training, expected);
  });
}

/// The average's factor is in the bucket already.
TEST(CudaOptimizerErrorTest, AReductionThatDoesNotStart_LeavesTheGradients) {
  std::latch refused(1);
  run_cuda_ranks(2, [&](CudaRank& rank) {
    const at::Tensor parameter = torch::zeros({3}, rank.options()).requires_grad_();
    torch::optim::SGD sgd({parameter}, torch::optim::SGDOptions(1.0));
    DistributedOptimizer optimizer(sgd, {{"p", parameter}}, options_of(rank, Shard::None));
    const auto backward = [&] { (parameter.sum() * (1.0 + rank.rank())).backward(); };
    std::string name;  // of the bucket's operation
    optimizer.register_bucket_hook([&](const GradientBucket& bucket) {
      name = bucket.name;
      return std::optional<TensorHandle>();
    });
    for (int step = 0; step < 2; ++step) {  // the second bucket stays
      backward();
      optimizer.step();
      optimizer.zero_grad();
    }
    optimizer.register_bucket_hook({});
    const at::Tensor before = parameter.detach().clone();
    at::Tensor other = torch::ones({1});
    const AllreduceOptions same_name{.name = name + ".flags", .process_set = &rank.world()};
    if (rank.rank() == 0) {
      TensorHandle in_flight = allreduce_async_(other, same_name);
      expect_contains(text_thrown_by<InvalidArgument>(backward), name);
      refused.count_down();
      in_flight.wait();
    } else {
      refused.wait();
      allreduce_(other, same_name);
      backward();
    }
    optimizer.step();
    EXPECT_TRUE(at::equal((before - parameter).cpu(), torch::full({3}, 1.5)));
  });
}

/// backward() runs one thread per device, and the hooks' state is not thread-safe.
TEST(CudaOptimizerErrorTest, LaterParametersOnAnotherDevice_AreRefused) {
  run_cuda_ranks(2, [&](CudaRank& rank) {
    const at::Tensor first = torch::ones({3}).requires_grad_();
    const at::Tensor later = torch::ones({3}).to(rank.device()).requires_grad_();
    torch::optim::SGD sgd({first}, torch::optim::SGDOptions(0.1));
    DistributedOptimizer optimizer(sgd, {{"first", first}, {"later", later}},
                                   options_of(rank, Shard::None));
    optimizer.add_param_group(torch::optim::OptimizerParamGroup({later}));
    const std::string text = text_thrown_by<InvalidArgument>([&] { optimizer.zero_grad(); });
    expect_contains(text, "'later': it lies on cuda:");
    expect_contains(text, "parameter 'first' on cpu");
  });
}

TEST(CudaOptimizerErrorTest, ParametersOnTwoDevices_AreRefused) {
  run_cuda_ranks(2, [&](CudaRank& rank) {
    torch::nn::Sequential model(torch::nn::Linear(3, 3), torch::nn::Linear(3, 3));
    model[1]->to(rank.device());
    torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1));
    const std::string text = text_thrown_by<InvalidArgument>(
        [&] { const DistributedOptimizer optimizer(sgd, *model, options_of(rank, Shard::None)); });
    expect_contains(text, "'1.weight': it lies on cuda:");
    expect_contains(text, "'0.weight' on cpu");
  });
}

TEST(CudaOptimizerErrorTest, WhatIsForCpuMemory_IsRefused) {
  run_cuda_ranks(2, [&](CudaRank& rank) {
    const auto text_of = [&](const DistributedOptimizer::Options& options) {
      return text_thrown_by<InvalidArgument>(
          [&] { const CudaTraining training(rank, Algorithm::Sgd, options); });
    };
    DistributedOptimizer::Options options = options_of(rank, Shard::None);
    options.op = ReduceOp::Adasum;
    std::string text = text_of(options);
    expect_contains(text, "'0.weight': it lies on cuda:");
    expect_contains(text, "op Adasum is for gradients in CPU memory. Use Average or Sum.");
    options = options_of(rank, Shard::Full);
    options.compression = Compression::top_k(0.1);
    text = text_of(options);
    expect_contains(text, "'0.weight': it lies on cuda:");
    expect_contains(text, "compression top_k:0.1 is for gradients in CPU memory. Use none, fp16");
    options.compression_policy = [](const auto&, const auto&) { return false; };
    const CudaTraining training(rank, Algorithm::Sgd, options);
  });
}

}  // namespace kolo::test::cuda_optimizer_test

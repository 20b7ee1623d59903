// DistributedOptimizer on CUDA tensors, on the double: it trains as one process would on the CPU, in
// every mode, without a hazard and without making a host wait.
#include <chrono>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/distributed_optimizer.hpp"
#include "kolo/error.hpp"
#include "kolo/grad_scaler.hpp"
#include "kolo/parameter_sync.hpp"
#include "kolo/tensor_collectives.hpp"
#include "torch/fake_cuda_fixture.hpp"
#include "torch/models.hpp"

namespace kolo::test {
namespace {

constexpr std::int64_t kRows = 2;  // of each rank
constexpr std::int64_t kWidth = 9;
constexpr int kSteps = 6;

struct Case {
  int ranks;
  Shard shard;
  Algorithm algorithm;
  bool fused = false;
};
void PrintTo(const Case& tried, std::ostream* out) {
  *out << tried.ranks << " ranks, " << name_of(tried.shard) << ", " << name_of(tried.algorithm)
       << (tried.fused ? ", fused" : "");
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const int ranks : {1, 2, 3, 4}) {
    for (const Shard shard : {Shard::None, Shard::Optimizer, Shard::Gradients}) {
      cases.push_back({ranks, shard, Algorithm::Sgd});
      cases.push_back({ranks, shard, Algorithm::AdamW});
    }
  }
  for (const Shard shard : {Shard::None, Shard::Gradients}) {
    cases.push_back({2, shard, Algorithm::AdamW, true});
    cases.push_back({3, shard, Algorithm::Sgd, true});
  }
  return cases;
}

DistributedOptimizer::Options options_of(CudaRank& rank, Shard shard) {
  DistributedOptimizer::Options options;
  options.shard = shard;
  options.bucket_bytes = 500;  // several
  options.process_set = &rank.world();
  return options;
}

c10::Stream new_stream(const CudaRank& rank) {
  return c10::impl::VirtualGuardImpl(c10::kCUDA).getNewStream(rank.device());
}

c10::Stream current_stream(const CudaRank& rank) {
  return c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(rank.device());
}

void order(const c10::Stream& first, const c10::Stream& then) {
  c10::Event event(c10::kCUDA);
  event.record(first);
  event.block(then);
}

at::Tensor rows_of(const CudaRank& rank, int step) {
  return batch_rows(step, kRows * rank.rank(), kRows, kWidth, at::kFloat).to(rank.device());
}

/// Random numbers come from one generator for all ranks, which are threads here.
torch::nn::Sequential make_model() {
  static std::mutex generating;
  const std::lock_guard lock(generating);
  return make_mlp(at::kFloat, kWidth);
}

/// Parameters after steps of one process on the CPU with the batches of `ranks`.
at::Tensor train_alone(Algorithm algorithm, int ranks, int steps,
                       const std::function<void(torch::nn::Sequential&)>& before_step = {}) {
  torch::nn::Sequential model = make_model();
  const auto optimizer = make_optimizer(algorithm, model->parameters());
  for (int step = 0; step < steps; ++step) {
    optimizer->zero_grad();
    loss_of(model, batch_rows(step, 0, kRows * ranks, kWidth, at::kFloat)).backward();
    if (before_step) before_step(model);
    optimizer->step();
  }
  return flat(*model);
}

/// A model on the rank's device, and its optimizer.
struct Training {
  Training(CudaRank& rank, Algorithm algorithm, DistributedOptimizer::Options options)
      : model(make_model()) {
    model->to(rank.device());
    wrapped = make_optimizer(algorithm, model->parameters());
    optimizer = std::make_unique<DistributedOptimizer>(*wrapped, *model, std::move(options));
  }
  void compute_gradients(const CudaRank& rank, int step) {
    optimizer->zero_grad();
    loss_of(model, rows_of(rank, step)).backward();
  }
  void step(const CudaRank& rank, int number) {
    compute_gradients(rank, number);
    optimizer->step();
  }

  torch::nn::Sequential model;
  std::unique_ptr<torch::optim::Optimizer> wrapped;
  std::unique_ptr<DistributedOptimizer> optimizer;
};

void expect_close(Training& training, const at::Tensor& expected, double tolerance = 1e-5) {
  EXPECT_LT(largest_difference(flat(*training.model).cpu(), expected), tolerance);
}

class CudaOptimizerTest : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Cases, CudaOptimizerTest, testing::ValuesIn(all_cases()));

TEST_P(CudaOptimizerTest, TrainsAsOneProcessWouldAndMakesNoHostWait) {
  const Case& tried = GetParam();
  const at::Tensor expected = train_alone(tried.algorithm, tried.ranks, kSteps);
  run_cuda_ranks(tried.ranks, [&](CudaRank& rank) {
    const c10::StreamGuard guard(new_stream(rank));
    DistributedOptimizer::Options options = options_of(rank, tried.shard);
    options.fused = tried.fused;
    Training training(rank, tried.algorithm, options);
    std::vector<at::Tensor> batches;
    for (int step = 0; step < kSteps; ++step) batches.push_back(rows_of(rank, step));
    int waited = 0;
    for (int step = 0; step < kSteps; ++step) {
      if (step == 2) waited = rank.host_syncs();
      training.optimizer->zero_grad();
      loss_of(training.model, batches[static_cast<std::size_t>(step)]).backward();
      training.optimizer->step();
    }
    EXPECT_EQ(rank.host_syncs(), waited);
    expect_close(training, expected);
  });
}

class CudaModesTest : public testing::TestWithParam<Shard> {};
INSTANTIATE_TEST_SUITE_P(Modes, CudaModesTest,
                         testing::Values(Shard::None, Shard::Optimizer, Shard::Gradients),
                         [](const auto& tried) { return std::string(name_of(tried.param)); });

TEST_P(CudaModesTest, ClipsTheNormOverAllRanks) {
  const at::Tensor expected = train_alone(Algorithm::Sgd, 3, kSteps, [](auto& model) {
    torch::nn::utils::clip_grad_norm_(model->parameters(), 0.1);
  });
  run_cuda_ranks(3, [&](CudaRank& rank) {
    Training training(rank, Algorithm::Sgd, options_of(rank, GetParam()));
    for (int step = 0; step < kSteps; ++step) {
      training.compute_gradients(rank, step);
      EXPECT_GT(training.optimizer->clip_grad_norm_(0.1), 0.1);
      training.optimizer->step();
    }
    expect_close(training, expected);
  });
}

TEST_P(CudaModesTest, AnOverflowOnOneRankSkipsTheStepOnAll) {
  const at::Tensor expected = train_alone(Algorithm::Sgd, 2, kSteps);
  run_cuda_ranks(2, [&](CudaRank& rank) {
    Training training(rank, Algorithm::Sgd, options_of(rank, GetParam()));
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

TEST_P(CudaModesTest, GradientsAddUpOverPasses) {
  const at::Tensor expected = train_alone(Algorithm::Sgd, 2, kSteps);
  run_cuda_ranks(2, [&](CudaRank& rank) {
    DistributedOptimizer::Options options = options_of(rank, GetParam());
    options.backward_passes_per_step = 2;
    if (GetParam() == Shard::Gradients) options.accumulation = Accumulation::Reduced;
    Training training(rank, Algorithm::Sgd, options);
    for (int step = 0; step < kSteps; ++step) {
      training.optimizer->zero_grad();
      for (int pass = 0; pass < 2; ++pass) {
        (loss_of(training.model, rows_of(rank, step)) / 2).backward();
      }
      training.optimizer->step();
    }
    expect_close(training, expected);
  });
}

TEST_P(CudaModesTest, ParametersWithoutGradientsOnSomeRanks) {
  run_cuda_ranks(3, [&](CudaRank& rank) {
    torch::nn::ParameterDict model;
    for (const char* name : {"a", "b", "c"}) {
      model->insert(name, torch::ones({5}, rank.options()).requires_grad_());
    }
    torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(1.0));
    DistributedOptimizer optimizer(sgd, *model, options_of(rank, GetParam()));
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      // Of a on all ranks, of b on one, of c on none.
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

TEST_P(CudaModesTest, RanksMayHaveFewerSteps) {
  run_cuda_ranks(3, [&](CudaRank& rank) {
    Training training(rank, Algorithm::Sgd, options_of(rank, GetParam()));
    for (int step = 0; step < 2 + rank.rank(); ++step) training.step(rank, step);
    training.optimizer->join();
    const at::Tensor own = flat(*training.model);
    const at::Tensor first = broadcast(own, 0, {.process_set = &rank.world()});
    EXPECT_TRUE(at::equal(own.cpu(), first.cpu()));
    training.step(rank, 9);
  });
}

TEST_P(CudaModesTest, CheckpointsGoOnInAnyMode) {
  const at::Tensor expected = train_alone(Algorithm::AdamW, 2, 2 * kSteps);
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) /
                                       ("cuda-checkpoint-" + std::string(name_of(GetParam())));
  run_cuda_ranks(2, [&](CudaRank& rank) {
    Training training(rank, Algorithm::AdamW, options_of(rank, GetParam()));
    for (int step = 0; step < kSteps; ++step) training.step(rank, step);
    training.optimizer->save(folder);
    training.optimizer->save_full_state(folder / "all.safetensors");
  });
  for (const Shard shard : {Shard::None, Shard::Optimizer, Shard::Gradients}) {
    run_cuda_ranks(2, [&](CudaRank& rank) {
      Training training(rank, Algorithm::AdamW, options_of(rank, shard));
      training.optimizer->load(folder);
      for (int step = kSteps; step < 2 * kSteps; ++step) training.step(rank, step);
      expect_close(training, expected);
    });
  }
  const at::Tensor halfway = train_alone(Algorithm::AdamW, 2, kSteps);
  run_cuda_ranks(2, [&](CudaRank& rank) {
    Training training(rank, Algorithm::AdamW, options_of(rank, GetParam()));
    training.optimizer->load(folder / "all.safetensors");
    expect_close(training, halfway);
  });
  std::filesystem::remove_all(folder);
}

/// Runs layer after layer, each on another stream. Returns what all of them have made, to be kept
/// until those streams are done: the program's duty, not Kolo's.
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

TEST_P(CudaModesTest, ForwardMayRunOnSeveralStreams) {
  const at::Tensor expected = train_alone(Algorithm::Sgd, 2, kSteps);
  run_cuda_ranks(2, [&](CudaRank& rank) {
    torch::nn::Sequential model = make_model();
    model->to(rank.device());
    const std::vector<c10::Stream> streams{new_stream(rank), new_stream(rank), new_stream(rank)};
    // backward() adds up a parameter's gradients on the stream of its first use.
    const auto first = forward_on(streams, model, rank, rows_of(rank, 0));
    const auto sgd = make_optimizer(Algorithm::Sgd, model->parameters());
    DistributedOptimizer::Options options = options_of(rank, GetParam());
    options.bucket_bytes = 4000;  // of several layers
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

TEST_P(CudaModesTest, AverageDividesByTheRanksThatAreActive) {
  const at::Tensor expected = train_alone(Algorithm::Sgd, 2, kSteps);
  run_cuda_ranks(3, [&](CudaRank& rank) {
    DistributedOptimizer::Options options = options_of(rank, GetParam());
    options.join_divisor = JoinDivisor::Active;
    Training training(rank, Algorithm::Sgd, options);
    for (int step = 0; rank.rank() < 2 && step < kSteps; ++step) training.step(rank, step);
    training.optimizer->join();
    expect_close(training, expected);
  });
}

TEST_P(CudaModesTest, MayBeDestroyedWhileGradientsAreReduced) {
  run_cuda_ranks(2, [&](CudaRank& rank) {
    {
      Training training(rank, Algorithm::Sgd, options_of(rank, GetParam()));
      for (int step = 0; step < 3; ++step) training.step(rank, step);
      training.compute_gradients(rank, 3);
    }
    at::Tensor others = torch::ones({4096}, rank.options());
    allreduce_(others, {.process_set = &rank.world()});
    EXPECT_TRUE(at::equal(others.cpu(), torch::ones({4096})));
  });
}

TEST(CudaCheckpointTest, HoldsTheRandomNumbersOfEachRanksDevice) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "cuda-random";
  run_cuda_ranks(2, [&](CudaRank& rank) {
    Training training(rank, Algorithm::Sgd, options_of(rank, Shard::None));
    at::Generator generator = at::globalContext().defaultGenerator(rank.device());
    generator.set_current_seed(static_cast<std::uint64_t>(rank.rank()) + 5);
    training.optimizer->save(folder);
    const at::Tensor expected = torch::rand({5}, rank.options()).cpu();
    training.optimizer->load(folder);
    EXPECT_TRUE(at::equal(torch::rand({5}, rank.options()).cpu(), expected));
    training.optimizer->load(folder, {.random_state = false});
    EXPECT_FALSE(at::equal(torch::rand({5}, rank.options()).cpu(), expected));
  });
  std::filesystem::remove_all(folder);
}

TEST(CudaOptimizerHybridTest, PartsAreReducedInsideNodesAndBetweenThem) {
  const at::Tensor expected = train_alone(Algorithm::AdamW, 4, kSteps);
  for (const Shard shard : {Shard::Optimizer, Shard::Gradients}) {
    Setting setting = cuda_setting(4);
    setting.network.nodes = 2;
    setting.network.gpus_per_rank = 2;  // a rank's GPU has its number in the world
    run_cuda_ranks(setting, [&](CudaRank& rank) {
      DistributedOptimizer::Options options = options_of(rank, shard);
      options.shard_scope = ShardScope::Node;
      Training training(rank, Algorithm::AdamW, options);
      // So late that what goes between nodes has begun for other buckets.
      training.model->parameters().front().register_hook(
          [](const at::Tensor&) { std::this_thread::sleep_for(std::chrono::milliseconds(30)); });
      for (int step = 0; step < kSteps; ++step) training.step(rank, step);
      expect_close(training, expected);
    });
  }
}

TEST(CudaOptimizerHookTest, ReducesBucketsInItsOwnWay) {
  const at::Tensor expected = train_alone(Algorithm::Sgd, 2, kSteps);
  run_cuda_ranks(2, [&](CudaRank& rank) {
    Training training(rank, Algorithm::Sgd, options_of(rank, Shard::None));
    training.optimizer->register_bucket_hook([&](const GradientBucket& bucket) {
      at::Tensor gradients = bucket.gradients;
      return allreduce_async_(gradients, {.name = bucket.name, .process_set = &rank.world()});
    });
    for (int step = 0; step < kSteps; ++step) training.step(rank, step);
    expect_close(training, expected);
  });
}

TEST(CudaSyncTest, ParametersAndStateOfTheRoot) {
  run_cuda_ranks(3, [&](CudaRank& rank) {
    torch::nn::Sequential model = make_model();
    model->to(rank.device());
    const auto adamw = make_optimizer(Algorithm::AdamW, model->parameters());
    {
      const at::NoGradGuard no_grad;
      for (at::Tensor& parameter : model->parameters()) parameter.add_(rank.rank());
    }
    loss_of(model, rows_of(rank, 0)).backward();
    adamw->step();
    broadcast_parameters(*model, 1, &rank.world());
    broadcast_optimizer_state(*adamw, 1, &rank.world());
    std::vector<at::Tensor> moments{flat(*model)};
    for (const at::Tensor& parameter : model->parameters()) {
      const auto& state = dynamic_cast<const torch::optim::AdamWParamState&>(
          *adamw->state().at(parameter.unsafeGetTensorImpl()));
      EXPECT_EQ(state.exp_avg().device(), rank.device());
      moments.push_back(state.exp_avg().flatten());
    }
    const at::Tensor own = torch::cat(moments);
    const at::Tensor roots = broadcast(own, 1, {.process_set = &rank.world()});
    EXPECT_TRUE(at::equal(own.cpu(), roots.cpu()));
  });
}

TEST(CudaOptimizerErrorTest, ParametersLieOnOneDevice) {
  run_cuda_ranks(2, [&](CudaRank& rank) {
    torch::nn::Sequential model(torch::nn::Linear(3, 3), torch::nn::Linear(3, 3));
    model[1]->to(rank.device());
    torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1));
    try {
      const DistributedOptimizer optimizer(sgd, *model, options_of(rank, Shard::None));
      ADD_FAILURE() << "no error";
    } catch (const InvalidArgument& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("'1.weight': it lies on cuda:"), std::string::npos) << text;
      EXPECT_NE(text.find("'0.weight' on cpu"), std::string::npos) << text;
    }
  });
}

}  // namespace
}  // namespace kolo::test

// Codecs on CUDA tensors, on the fake GPU: collectives, and DistributedOptimizer in every mode with
// error feedback, without hazards and without blocking a host.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <ostream>
#include <string>
#include <unistd.h>
#include <vector>

#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/codec.hpp"
#include "kolo/error.hpp"
#include "kolo/extras/power_sgd.hpp"
#include "kolo/torch/grad_scaler.hpp"
#include "kolo/torch/tensor_collectives.hpp"
#include "support/codecs.hpp"
#include "train/cuda/cuda_training.hpp"
#include "train/cuda/linear_training.hpp"

namespace kolo::test::cuda_codec_test {

struct Case {
  int ranks;
  Shard shard;
};
void PrintTo(const Case& tried, std::ostream* out) {
  *out << tried.ranks << " ranks, " << name_of(tried.shard);
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const int ranks : {1, 2, 3, 4}) {
    for (const Shard shard : {Shard::None, Shard::Optimizer, Shard::Gradients, Shard::Full}) {
      cases.push_back({ranks, shard});
    }
  }
  return cases;
}

std::string name_of_case(const testing::TestParamInfo<Case>& tried) {
  return std::string(name_of(tried.param.shard)) + "On" + std::to_string(tried.param.ranks);
}

class CudaCodecTest : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(, CudaCodecTest, testing::ValuesIn(all_cases()), name_of_case);

/// The last steps have next to no gradients: they apply residuals.
TEST_P(CudaCodecTest, Residual_IsAppliedWithoutHostWaits) {
  const auto [ranks, shard] = GetParam();
  run_cuda_ranks(ranks, [&, ranks = ranks, shard = shard](CudaRank& rank) {
    const c10::StreamGuard guard(new_stream(rank));
    for (const Compression& compression : codecs_with_gpu_kernels()) {
      LinearTraining training(rank, {.compression = compression, .shard = shard});
      std::vector<std::vector<at::Tensor>> steps;
      for (int step = 0; step < 4; ++step) {
        steps.push_back(training.gradients(step));
        training.count(step);
      }
      training.step(steps[0]);
      training.step(steps[1]);
      const int waited = rank.host_syncs();
      training.step(steps[2]);
      training.step(steps[3]);
      EXPECT_EQ(rank.host_syncs(), waited) << compression.name();
      const double before = training.missing();
      EXPECT_EQ(before > 1e-3, ranks > 1) << compression.name() << ": nothing is lost";
      // For equal values random_k draws the same places, so gradients must not be exactly zero.
      std::vector<at::Tensor> little;
      for (const at::Tensor& each : steps[0]) little.push_back(torch::full_like(each, 1e-7));
      for (int step = 0; step < 45; ++step) training.step(little);
      const double most = compression == Compression::one_bit() ? before / 4 : 1e-3;
      EXPECT_LE(training.missing(), ranks > 1 ? most : 1e-4) << compression.name();
    }
  });
}

/// A step that a scaler skips leaves nothing to apply later, and loses no earlier residuals.
TEST_P(CudaCodecTest, SkippedSteps_LeaveNoResidual) {
  const auto [ranks, shard] = GetParam();
  run_cuda_ranks(ranks, [&, shard = shard](CudaRank& rank) {
    LinearTraining training(rank, {.compression = Compression::top_k(0.3), .shard = shard});
    GradScaler scaler({.init_scale = 8.0});
    std::vector<at::Tensor> own;
    for (int step = 0; step < 3; ++step) {
      own = training.gradients(step);
      training.optimizer->zero_grad();
      scaler.scale(training.loss(own)).backward();
      EXPECT_TRUE(scaler.step(*training.optimizer));
      scaler.update();
      training.count(step);
    }
    if (rank.rank() == rank.size() - 1) own[0][3] = std::numeric_limits<float>::infinity();
    training.optimizer->zero_grad();
    scaler.scale(training.loss(own)).backward();
    EXPECT_FALSE(scaler.step(*training.optimizer));
    scaler.update();
    for (int step = 0; step < 25; ++step) {
      training.optimizer->zero_grad();
      scaler.scale(training.loss(own) * 0.0).backward();
      scaler.step(*training.optimizer);
      scaler.update();
      for (at::Tensor& each : own) each = torch::zeros_like(each);
    }
    EXPECT_LT(training.missing(), 1e-3);
  });
}

/// The padding between gradients does not matter.
TEST_P(CudaCodecTest, Training_ResumesExactly) {
  const auto [ranks, shard] = GetParam();
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) /
                                       ("cuda-codec-" + std::string(name_of(shard)) +
                                        std::to_string(ranks) + "-" + std::to_string(::getpid()));
  run_cuda_ranks(ranks, [&, shard = shard](CudaRank& rank) {
    const auto run = [&](const LinearTraining& training, int begin, int end) {
      for (int step = begin; step < end; ++step) training.step(training.gradients(step));
    };
    const DistributedOptimizer::Options options{.compression = Compression::one_bit(),
                                                .shard = shard};
    LinearTraining before(rank, options);
    run(before, 0, 3);
    before.optimizer->save(folder);
    run(before, 3, 5);
    LinearTraining after(rank, options);
    after.optimizer->load(folder);
    run(after, 3, 5);
    for (std::size_t i = 0; i < before.parameters.size(); ++i) {
      EXPECT_TRUE(at::equal(after.parameters[i].cpu(), before.parameters[i].cpu())) << i;
    }
  });
  std::filesystem::remove_all(folder);
}

TEST_P(CudaCodecTest, Training_EndsNearThatWithoutACodec) {
  const auto [ranks, shard] = GetParam();
  const at::Tensor expected = train_alone(Algorithm::Sgd, ranks, kSteps);
  run_cuda_ranks(ranks, [&, shard = shard](CudaRank& rank) {
    DistributedOptimizer::Options options = options_of(rank, shard);
    options.compression = Compression::int8();
    CudaTraining training(rank, Algorithm::Sgd, options);
    for (int step = 0; step < kSteps; ++step) training.step(rank, step);
    expect_close(training, expected, 1e-2);
    const at::Tensor own = flat(*training.model);
    const at::Tensor first = broadcast(own, 0, {.process_set = &rank.world()});
    EXPECT_TRUE(at::equal(own.cpu(), first.cpu()));
  });
}

/// With shards within nodes, data between nodes is encoded.
TEST(CudaCodecNodesTest, ShardsOfANode_KeepResidualsForTheirReplicas) {
  for (const Shard shard : {Shard::Optimizer, Shard::Gradients, Shard::Full}) {
    Setting setting = cuda_setting(4);
    setting.network.nodes = 2;
    setting.network.gpus_per_rank = 2;  // a rank's GPU has its number in the world
    run_cuda_ranks(setting, [&](CudaRank& rank) {
      LinearTraining training(rank, {.compression = Compression::top_k(0.3),
                                     .shard = shard,
                                     .shard_scope = ShardScope::Node});
      for (int step = 0; step < 4; ++step) {
        training.step(training.gradients(step));
        training.count(step);
      }
      EXPECT_GT(training.missing(), 1e-3) << "nothing is lost";
      std::vector<at::Tensor> zeros;
      for (const at::Tensor& each : training.gradients(0)) zeros.push_back(torch::zeros_like(each));
      for (int step = 0; step < 25; ++step) training.step(zeros);
      EXPECT_LT(training.missing(), 1e-3);
    });
  }
}

TEST(CudaCodecCollectivesTest, TensorsAreReduced) {
  for (const int ranks : {1, 2, 3, 4}) {
    run_cuda_ranks(ranks, [&](CudaRank& rank) {
      const int n = rank.size();
      // Only signs vary, which both codecs send exactly.
      const at::Tensor signs = (torch::arange(600, at::kFloat).remainder(3) - 0.5).sign();
      const at::Tensor own = (signs * (rank.rank() + 1)).to(rank.device());
      const at::Tensor sum = signs * (n * (n + 1) / 2.0);
      const int waited = rank.host_syncs();
      std::vector<at::Tensor> got;
      for (const Compression& compression : {Compression::int8(), Compression::one_bit()}) {
        const AllreduceOptions options{
            .op = ReduceOp::Sum, .compression = compression, .process_set = &rank.world()};
        got.push_back(allreduce_async(own, options).result());
        got.push_back(reduce_scatter_async(own, options).result());
      }
      EXPECT_EQ(rank.host_syncs(), waited);
      std::int64_t first = 0;
      for (int other = 0; other < rank.rank(); ++other) first += scattered_rows(600, n, other);
      for (std::size_t i = 0; i < got.size(); i += 2) {
        EXPECT_TRUE(at::allclose(got[i].cpu(), sum)) << i;
        EXPECT_TRUE(at::allclose(got[i + 1].cpu(), sum.narrow(0, first, got[i + 1].size(0)))) << i;
      }
    });
  }
}

/// Sends only the number of its elements.
class Nothing final : public Codec {
 public:
  std::string_view name() const override { return "nothing"; }
  std::size_t block() const override { return 8; }
  double error_bound() const override { return 1.0; }
  std::size_t payload_bytes(std::size_t, int) const override { return 1; }
  void encode(std::span<const float>, int, std::byte* payload) const override { *payload = {}; }
  void add_decoded(const std::byte*, int, std::span<float>) const override {}
};

TEST(CudaCodecErrorTest, CodecsWithoutKernels_AreRefused) {
  static const Nothing codec;
  run_ranks(
      2,
      [&](FakeWorld& world) {
        const auto gpu = std::make_shared<FakeCudaDevice>(world.hub(), world.topology().rank);
        const FakeCudaAttachment attachment(gpu);
        const c10::DeviceGuard guard(gpu->device());
        InitOptions init = options_in(world, test_config());
        init.codecs = {&codec};
        Runtime runtime(std::move(init));
        Runtime::set_thread_current(&runtime);
        CudaRank rank(runtime, gpu);
        const std::string text = text_thrown_by<InvalidArgument>([&] {
          const LinearTraining training(rank, {.compression = Compression::named("nothing")});
        });
        expect_contains(text, "parameter 'p0': it lies on cuda:");
        expect_contains(text, "compression nothing has no kernels for GPUs. Use int8");
      },
      cuda_setting(2).network);
}

TEST(CudaPowerSgdTest, SmallMatrices_AreReducedAsOnTheCpu) {
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
      optimizer.zero_grad();
      (weight * (column * row * (rank.rank() + 1)).to(rank.device())).sum().backward();
      optimizer.step();
      EXPECT_TRUE(
          at::allclose(weight.detach().cpu(), -column * row * (ranks + 1) / 2.0, 1e-3, 1e-4));
    });
  }
}

}  // namespace kolo::test::cuda_codec_test

// Training with SyncBatchNorm gives the same results as one process with the rows of all ranks.
#include <functional>
#include <string>

#include "extras/modules/joined_batches.hpp"
#include "kolo/extras/sync_batch_norm.hpp"
#include "kolo/torch/distributed_optimizer.hpp"
#include "support/mpi/variants.hpp"
#include "train/sharding.hpp"

namespace kolo::test::sync_batch_norm_training_test {

const AlsoIn also_in({"messages"});

constexpr int kSteps = 5;
constexpr std::int64_t kClasses = 3;

torch::nn::Sequential make_net() {
  using namespace torch::nn;
  torch::manual_seed(21);
  return Sequential(Conv2d(Conv2dOptions(1, 4, 3).padding(1).bias(false)), BatchNorm2d(4), Tanh(),
                    Conv2d(Conv2dOptions(4, 5, 3).stride(2).bias(false)), BatchNorm2d(5), Tanh(),
                    Flatten(), Linear(20, 6), BatchNorm1d(6), Linear(6, kClasses));
}

at::Tensor images(int step, std::int64_t rows) {
  return batch_rows(step, 0, rows, 36, at::kFloat).view({rows, 1, 6, 6});
}

at::Tensor classes(int step, std::int64_t rows) {
  return (at::arange(rows) * 5 + step).remainder(kClasses);
}

at::Tensor sum_of_losses(torch::nn::Sequential& net, const at::Tensor& rows,
                         const at::Tensor& expected) {
  return torch::cross_entropy_loss(net->forward(rows), expected, {}, at::Reduction::Sum);
}

/// All parameters and running statistics.
std::vector<at::Tensor> state_of(const torch::nn::Sequential& net) {
  std::vector<at::Tensor> state{flat(*net)};
  for (const at::Tensor& buffer : net->buffers()) state.push_back(buffer.to(at::kFloat));
  return state;
}

std::vector<at::Tensor> train_alone(std::int64_t rows) {
  torch::nn::Sequential net = make_net();
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < kSteps; ++step) {
    sgd.zero_grad();
    (sum_of_losses(net, images(step, rows), classes(step, rows)) / rows).backward();
    sgd.step();
  }
  return state_of(net);
}

class SyncBatchNormTrainingTest : public TrainingTest {
 protected:
  /// `prepare` may change the options.
  void check(Shard shard, Rows kind, ProcessSet& set,
             const std::function<void(DistributedOptimizer::Options&)>& prepare = nullptr) {
    const JoinedBatch batch(set, kind);
    torch::nn::Sequential net = make_net();
    EXPECT_EQ(convert_sync_batch_norm(*net, &set).size(), 3U);
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    DistributedOptimizer::Options options = with(shard);
    options.process_set = &set;
    if (prepare) prepare(options);
    DistributedOptimizer optimizer(sgd, *net, options);
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      const at::Tensor rows = batch.own(images(step, batch.count()));
      const at::Tensor loss =
          sum_of_losses(net, rows, batch.own(classes(step, batch.count()))) *
          (static_cast<double>(set.size()) / static_cast<double>(batch.count()));
      loss.backward();
      optimizer.step();
    }
    const std::vector<at::Tensor> state = state_of(net);
    const std::vector<at::Tensor> expected = train_alone(batch.count());
    for (std::size_t i = 0; i < state.size(); ++i) {
      expect_close(state[i], expected[i], 1e-5, "tensor " + std::to_string(i));
    }
  }
};

TEST_F(SyncBatchNormTrainingTest, EveryMode_IsOneProcessWithAllRows) {
  for (const Shard shard : all_modes()) {
    SCOPED_TRACE("mode " + std::to_string(static_cast<int>(shard)));
    check(shard, Rows::Even, runtime_.world());
    check(shard, Rows::NoneOnTheLast, runtime_.world());
  }
}

TEST_F(SyncBatchNormTrainingTest, UnitsOfOneModule_AreGatheredBetweenItsCollectives) {
  for (const Rows kind : {Rows::Uneven, Rows::NoneOnTheLast}) {
    check(Shard::Full, kind, runtime_.world(), [](DistributedOptimizer::Options& options) {
      options.unit_policy = [](const std::string&, const torch::nn::Module& module) {
        return module.children().empty();
      };
    });
  }
}

}  // namespace kolo::test::sync_batch_norm_training_test

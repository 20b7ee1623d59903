// Training on several ranks gives the same result as one process with the whole batch, in every
// combination of shard mode, accumulation, clipping, GradScaler and normalisation.
#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/runtime.hpp"
#include "kolo/torch/distributed_optimizer.hpp"
#include "kolo/torch/grad_scaler.hpp"
#include "runtime/runtimes.hpp"
#include "support/mpi/test_world.hpp"
#include "torch/models.hpp"
#include "torch/sharding.hpp"
#include "torch/torch_fixture.hpp"

namespace kolo::test::training_grid_test {

constexpr int kSteps = 3;
constexpr std::int64_t kColumns = 5;
constexpr double kMaxNorm = 0.05;  // below the norms of all gradients

/// A shard mode, and whether ranks share memory.
struct Place {
  const char* name;
  Shard shard;
  bool shares_memory = true;
};
void PrintTo(const Place& place, std::ostream* out) { *out << place.name; }

/// How many passes a step has; the last step may have fewer.
struct Passes {
  const char* name;
  int per_step;
  int in_last_step;
  int of(int step) const { return step + 1 < kSteps ? per_step : in_last_step; }
};
void PrintTo(const Passes& passes, std::ostream* out) { *out << passes.name; }

struct Loop {
  bool has_counts;  // backward(loss_sum, count) with uneven batches, or the mean of equal ones
  bool clips;
  bool scales;
  std::string name() const {
    return std::string(has_counts ? "counts" : "means") + (clips ? ", clipped" : "") +
           (scales ? ", scaled" : "");
  }
  /// Pairwise coverage: each optimizer occurs with each value of every other property.
  Algorithm algorithm() const { return clips == scales ? Algorithm::AdamW : Algorithm::Sgd; }
};

std::vector<Loop> all_loops() {
  std::vector<Loop> loops;
  for (const bool has_counts : {true, false}) {
    for (const bool clips : {true, false}) {
      for (const bool scales : {true, false}) loops.push_back({has_counts, clips, scales});
    }
  }
  return loops;
}

torch::nn::Sequential make_model() {
  torch::manual_seed(23);
  return torch::nn::Sequential(torch::nn::Linear(kColumns, 7), torch::nn::Tanh(),
                               torch::nn::Linear(7, 3), torch::nn::Tanh(), torch::nn::Linear(3, 3));
}

/// The rows of a rank in one pass. The last of several ranks has none in some passes.
std::int64_t count_of(const Loop& loop, int rank, int size, int step, int pass) {
  if (!loop.has_counts) return 2;
  if (size > 1 && rank == size - 1 && (step + pass) % 2 == 0) return 0;
  return 1 + (2 * rank + 3 * pass + step) % 4;
}

at::Tensor rows_of(int rank, int step, int pass, std::int64_t count) {
  return batch_rows(step, 100 * pass + 10 * rank, count, kColumns, torch::kFloat32);
}

at::Tensor loss_sum(torch::nn::Sequential& model, const at::Tensor& rows) {
  return (model->forward(rows) - rows.narrow(1, 0, 3)).square().sum();
}

class TrainingGridTest : public testing::TestWithParam<std::tuple<Place, Passes>> {
 protected:
  const Place& place() const { return std::get<0>(GetParam()); }
  const Passes& passes() const { return std::get<1>(GetParam()); }
  bool gathers() const {
    return place().shard == Shard::Full && runtime_.size() > 1 &&
           (!runtime_.config().shared_memory || runtime_.local_size() < runtime_.size());
  }

  DistributedOptimizer::Options options(const Loop& loop) const {
    DistributedOptimizer::Options options = with(place().shard);
    options.bucket_bytes = 160;  // several buckets
    options.backward_passes_per_step = passes().per_step;
    const bool keeps_shards = place().shard == Shard::Gradients || place().shard == Shard::Full;
    if (keeps_shards && loop.clips) options.accumulation = Accumulation::Reduced;
    return options;
  }

  void run_pass(DistributedOptimizer& optimizer, torch::nn::Sequential& model, const Loop& loop,
                GradScaler& scaler, int step, int pass) const {
    const int rank = runtime_.rank();
    const std::int64_t count = count_of(loop, rank, runtime_.size(), step, pass);
    if (count == 0 && !gathers()) return optimizer.backward(scaler.scale({}), 0);
    // Where parameters are gathered on use, all ranks must use them, here with a row that does not
    // count.
    const at::Tensor rows = rows_of(rank, step, pass, count == 0 ? 1 : count);
    const at::Tensor sum = scaler.scale(loss_sum(model, rows));
    if (loop.has_counts) return optimizer.backward(sum, count);
    (sum / (count * passes().of(step))).backward();
  }

  at::Tensor train(const Loop& loop) const {
    torch::nn::Sequential model = make_model();
    const std::unique_ptr<Optimizer> inner = make_optimizer(loop.algorithm(), model->parameters());
    DistributedOptimizer optimizer(*inner, *model, options(loop));
    GradScaler scaler({.enabled = loop.scales});
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      for (int pass = 0; pass < passes().of(step); ++pass) {
        run_pass(optimizer, model, loop, scaler, step, pass);
      }
      scaler.unscale_(optimizer);
      if (loop.clips) optimizer.clip_grad_norm_(kMaxNorm);
      EXPECT_TRUE(scaler.step(optimizer));
      scaler.update();
    }
    return flat(*model).clone();
  }

  /// The same in one process, with the rows of all ranks and passes.
  at::Tensor train_alone(const Loop& loop) const {
    torch::nn::Sequential model = make_model();
    const std::unique_ptr<Optimizer> optimizer =
        make_optimizer(loop.algorithm(), model->parameters());
    for (int step = 0; step < kSteps; ++step) {
      std::vector<at::Tensor> rows;
      for (int rank = 0; rank < runtime_.size(); ++rank) {
        for (int pass = 0; pass < passes().of(step); ++pass) {
          rows.push_back(
              rows_of(rank, step, pass, count_of(loop, rank, runtime_.size(), step, pass)));
        }
      }
      const at::Tensor all = torch::cat(rows);
      optimizer->zero_grad();
      (loss_sum(model, all) / all.size(0)).backward();
      if (loop.clips) torch::nn::utils::clip_grad_norm_(model->parameters(), kMaxNorm);
      optimizer->step();
    }
    return flat(*model);
  }

  Runtime runtime_{[] {
    Config config = config_from_environment();
    config.shared_memory = config.shared_memory && std::get<0>(GetParam()).shares_memory;
    return in_test_world(config);
  }()};
};

TEST_P(TrainingGridTest, Parameters_AreThoseOfTheWholeBatch) {
  for (const Loop& loop : all_loops()) {
    const bool is_slow = !place().shares_memory;  // many small messages
    if (is_slow && loop.clips != loop.scales) continue;
    EXPECT_LT(largest_difference(train(loop), train_alone(loop)), 1e-5) << loop.name();
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, TrainingGridTest,
    testing::Combine(testing::Values(Place{"None", Shard::None},
                                     Place{"Optimizer", Shard::Optimizer},
                                     Place{"Gradients", Shard::Gradients},
                                     Place{"Full", Shard::Full},
                                     Place{"FullByMessages", Shard::Full, false}),
                     testing::Values(Passes{"OnePass", 1, 1}, Passes{"ThreePasses", 3, 3},
                                     Passes{"TwoPassesAtTheEnd", 3, 2})),
    [](const auto& which) {
      return std::string(std::get<0>(which.param).name) + "With" + std::get<1>(which.param).name;
    });

}  // namespace kolo::test::training_grid_test

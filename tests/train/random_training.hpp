#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/torch/distributed_optimizer.hpp"
#include "kolo/torch/grad_scaler.hpp"
#include "runtime/runtimes.hpp"
#include "support/random.hpp"
#include "train/models.hpp"

/// Training loops of random steps: skipped batches, dropped gradients, passes, counts, frozen
/// layers, moved groups, clipping, loss scales, rates, resets of state, errors caught, evaluation
/// between. A loop depends only on its seed; Reference runs it in one process over the whole batch.
namespace kolo::test::random_training {

inline constexpr int kSteps = 300;
inline constexpr int kStepsBetweenComparisons = 10;
inline constexpr int kLayers = 5;
inline constexpr std::int64_t kWidth = 6;

/// Residual layers, of which a pass may leave out some.
struct Net : torch::nn::Module {
  Net() {
    for (int i = 0; i < kLayers; ++i) {
      const std::string name = "layer" + std::to_string(i);
      const at::Tensor ramp = torch::arange(kWidth * kWidth, torch::kFloat64);
      weights.push_back(register_parameter(
          name + "_weight", ((ramp + 3.0 * i).sin() * 0.4).view({kWidth, kWidth}).clone()));
      biases.push_back(register_parameter(name + "_bias", torch::zeros({kWidth}, torch::kFloat64)));
    }
  }
  /// The sum over rows; code in backward() throws at layer `failing`.
  at::Tensor loss(const at::Tensor& rows, const std::vector<bool>& used, int failing = -1) {
    at::Tensor x = rows;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      if (!used[i]) continue;
      at::Tensor inner = torch::tanh(x.matmul(weights[i]) + biases[i]);
      if (static_cast<int>(i) == failing) {
        inner.register_hook([](const at::Tensor&) { throw std::runtime_error("a bad batch"); });
      }
      x = x + 0.5 * inner;
    }
    return (x - rows.flip(1)).square().sum();
  }
  /// The parameters of groups 0 and 1.
  std::vector<torch::optim::OptimizerParamGroup> groups() const {
    return {torch::optim::OptimizerParamGroup(weights), torch::optim::OptimizerParamGroup(biases)};
  }
  std::vector<at::Tensor> of_layer(int layer) const {
    const auto i = static_cast<std::size_t>(layer);
    return {weights[i], biases[i]};
  }

  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> biases;
};

enum class Kind { Train, Skip, Fail };
enum class Zeroing { ByWrapper, ByWrapped, ByModel };
enum class Dropping { BeforeReduction, AfterReduction, ByVisitor };

/// One step, equal on all ranks.
struct Step {
  Kind kind = Kind::Train;
  Zeroing zeroing = Zeroing::ByWrapper;
  int passes = 1;
  bool has_counts = false;
  std::vector<std::vector<bool>> used;            // layers, of each rank
  std::vector<std::vector<std::int64_t>> rows{};  // of each rank and pass
  int failing = -1;                               // layer
  int dropped = -1;                               // layer
  Dropping dropping = Dropping::ByVisitor;
  double max_norm = 0.0;
  double max_value = 0.0;
  double rate = 0.0;  // a new one, of this group
  int rate_group = 0;
  int moved = -1;    // weight that changes its group
  int toggled = -1;  // layer that is frozen, or trained again
  int reset = -1;    // layer whose state is reset
};

/// The loop of a seed.
struct Program {
  bool changes_wrapped = false;  // optimizer: rates and groups; otherwise the wrapper
  bool has_two_passes = false;   // backward_passes_per_step; otherwise the program uses no_sync()
  bool scales = false;           // losses; layer 0 then keeps its gradient: a step needs one
  std::vector<Step> steps;
};

inline Program random_program(std::uint64_t seed, int ranks, bool uses_alike) {
  simulator::Random random(seed);
  Program program;
  program.has_two_passes = seed % 2 == 0;
  program.changes_wrapped = seed % 3 == 0;
  program.scales = seed / 2 % 2 == 1;
  for (int i = 0; i < kSteps; ++i) {
    Step step;
    step.kind = random.one_in(8) ? Kind::Skip : random.one_in(12) ? Kind::Fail : Kind::Train;
    step.zeroing = static_cast<Zeroing>(random.between(0, 2));
    step.passes = random.between(1, program.has_two_passes ? 2 : 3);
    step.has_counts = random.one_in(3);
    const bool is_taken = step.kind == Kind::Train;
    if (step.has_counts && !is_taken) step.zeroing = Zeroing::ByWrapper;  // it drops counts, too
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<bool> used(kLayers, true);
      // Layer 0 always has a gradient. Where backward() throws, all ranks have got the same ones.
      if (random.one_in(3) && step.kind != Kind::Fail) {
        used[static_cast<std::size_t>(random.between(1, kLayers - 1))] = false;
      }
      std::vector<std::int64_t> rows;
      for (int pass = 0; pass < step.passes; ++pass) {
        const bool may_be_empty = step.has_counts && is_taken && rank > 0;
        rows.push_back(random.below(3) + (may_be_empty ? 0 : 1));
      }
      step.used.push_back(uses_alike && rank > 0 ? step.used.front() : used);
      step.rows.push_back(std::move(rows));
    }
    if (step.kind == Kind::Fail) step.failing = 0;
    if (random.one_in(4)) {
      step.dropped = random.between(program.scales ? 1 : 0, kLayers - 1);
      bool is_used_by_all = true;
      for (int rank = 0; rank < ranks; ++rank) {
        const auto r = static_cast<std::size_t>(rank);
        is_used_by_all = is_used_by_all && step.used[r][static_cast<std::size_t>(step.dropped)];
        for (const std::int64_t count : step.rows[r]) is_used_by_all = is_used_by_all && count > 0;
      }
      if (is_used_by_all) step.dropping = static_cast<Dropping>(random.between(0, 2));
    }
    if (random.one_in(3)) step.max_norm = 0.05 + 0.1 * random.between(0, 4);
    if (random.one_in(4)) step.max_value = 0.01 * random.between(1, 5);
    if (random.one_in(8)) step.moved = random.between(0, kLayers - 1);
    if (random.one_in(6)) {
      step.rate = 0.002 * random.between(1, 5);
      step.rate_group = random.between(0, 1);
    }
    if (random.one_in(6)) step.toggled = random.between(1, kLayers - 1);
    if (random.one_in(10)) step.reset = random.between(0, kLayers - 1);
    program.steps.push_back(std::move(step));
  }
  return program;
}

inline std::unique_ptr<torch::optim::Optimizer> make_optimizer(std::uint64_t seed, const Net& net) {
  using namespace torch::optim;
  // eps 1e-4: a gradient that is zero in theory is rounding noise, which Adam would amplify.
  switch (seed % 4) {
    case 0: return std::make_unique<Adam>(net.groups(), AdamOptions(0.004).eps(1e-4));
    case 1: return std::make_unique<SGD>(net.groups(), SGDOptions(0.01).momentum(0.9));
    case 2: return std::make_unique<AdamW>(net.groups(), AdamWOptions(0.004).eps(1e-4));
    default: return std::make_unique<RMSprop>(net.groups(), RMSpropOptions(0.001).eps(1e-4));
  }
}

inline at::Tensor rows_of(int step, int rank, int pass, std::int64_t count) {
  return batch_rows(step, 100 * pass + 10 * rank, count, kWidth, torch::kFloat64);
}

/// What both loops do outside of the optimizer.
class Loop {
 protected:
  void toggle(const Step& step) {
    if (step.toggled < 0) return;
    for (at::Tensor& parameter : net_.of_layer(step.toggled)) {
      parameter.requires_grad_(!parameter.requires_grad());
    }
  }
  static void set_rate(torch::optim::Optimizer& optimizer, const Step& step) {
    if (step.rate == 0.0) return;
    const auto group = static_cast<std::size_t>(step.rate_group);
    optimizer.param_groups()[group].options().set_lr(step.rate);
  }
  void move(torch::optim::Optimizer& optimizer, const Step& step) {
    if (step.moved < 0) return;
    const at::Tensor weight = net_.of_layer(step.moved).front();
    auto& groups = optimizer.param_groups();
    for (std::size_t i = 0; i < groups.size(); ++i) {
      std::vector<at::Tensor>& members = groups[i].params();
      if (std::erase_if(members, [&](const at::Tensor& each) { return each.is_same(weight); }) ==
          0) {
        continue;
      }
      return groups[1 - i].params().push_back(weight);
    }
  }

  Net net_;
};

/// Parameters and the loss of an evaluation, after some steps.
struct Snapshot {
  at::Tensor parameters;
  double loss = 0.0;
};

/// The loop in one process, over the batches of all ranks.
class Reference : Loop {
 public:
  explicit Reference(std::uint64_t seed) : optimizer_(make_optimizer(seed, net_)) {}

  std::vector<Snapshot> run(const Program& program) {
    std::vector<Snapshot> snapshots;
    for (int i = 0; i < kSteps; ++i) {
      const Step& step = program.steps[static_cast<std::size_t>(i)];
      toggle(step);
      set_rate(*optimizer_, step);
      move(*optimizer_, step);
      if (step.reset >= 0) {
        for (const at::Tensor& parameter : net_.of_layer(step.reset)) {
          optimizer_->state().erase(parameter.unsafeGetTensorImpl());
        }
      }
      if (step.kind == Kind::Train) train(step, i);
      if ((i + 1) % kStepsBetweenComparisons == 0) {
        const at::NoGradGuard no_grad;
        const std::vector<bool> all(kLayers, true);
        snapshots.push_back({flat(net_), net_.loss(rows_of(0, 0, 0, 4), all).item<double>()});
      }
    }
    return snapshots;
  }

 private:
  void train(const Step& step, int number) {
    optimizer_->zero_grad();
    at::Tensor sum = torch::zeros({}, torch::kFloat64);
    double count = 0.0;
    for (std::size_t rank = 0; rank < step.rows.size(); ++rank) {
      for (std::size_t pass = 0; pass < step.rows[rank].size(); ++pass) {
        const std::int64_t rows = step.rows[rank][pass];
        if (rows == 0) continue;
        const at::Tensor loss = net_.loss(
            rows_of(number, static_cast<int>(rank), static_cast<int>(pass), rows), step.used[rank]);
        count += static_cast<double>(rows);
        sum = sum + (step.has_counts
                         ? loss
                         : loss / (rows * step.passes * static_cast<int>(step.rows.size())));
      }
    }
    (step.has_counts ? sum / count : sum).backward();
    if (step.dropped >= 0) {
      for (const at::Tensor& parameter : net_.of_layer(step.dropped)) {
        parameter.mutable_grad().reset();
      }
    }
    if (step.max_value > 0.0) {
      torch::nn::utils::clip_grad_value_(net_.parameters(), step.max_value);
    }
    if (step.max_norm > 0.0) torch::nn::utils::clip_grad_norm_(net_.parameters(), step.max_norm);
    optimizer_->step();
  }

  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

/// The loop on one of several ranks.
class Distributed : Loop {
 public:
  Distributed(std::uint64_t seed, const Program& program, Shard shard, const Runtime& runtime,
              bool uses_alike)
      : program_(program),
        rank_(runtime.rank()),
        uses_alike_(uses_alike),
        inner_(make_optimizer(seed, net_)),
        optimizer_(*inner_, net_, options(shard, seed)),
        scaler_({.enabled = program.scales}) {}

  void run(const std::vector<Snapshot>& expected) {
    for (int i = 0; i < kSteps; ++i) {
      const Step& step = program_.steps[static_cast<std::size_t>(i)];
      toggle(step);
      torch::optim::Optimizer& changed = program_.changes_wrapped ? *inner_ : optimizer_;
      set_rate(changed, step);
      move(changed, step);
      if (step.reset >= 0) {
        for (const at::Tensor& parameter : net_.of_layer(step.reset)) {
          optimizer_.reset_parameter_state(parameter);
        }
      }
      try {
        take(step, i);
      } catch (const std::exception& error) {
        throw std::runtime_error("step " + std::to_string(i) + ": " + error.what());
      }
      if ((i + 1) % kStepsBetweenComparisons != 0) continue;
      const at::NoGradGuard no_grad;
      const Snapshot& right = expected[static_cast<std::size_t>(i / kStepsBetweenComparisons)];
      const std::vector<bool> all(kLayers, true);
      const double loss = net_.loss(rows_of(0, 0, 0, 4), all).item<double>();
      const at::Tensor parameters = flat(net_);
      EXPECT_NEAR(loss, right.loss, 1e-7 * right.loss) << "after step " << i;
      const double difference = largest_difference(parameters, right.parameters);
      if (!(difference < 1e-7)) {
        ADD_FAILURE() << "after step " << i << " of rank " << rank_ << ": " << difference;
        throw std::runtime_error("the loops differ");  // on all ranks
      }
    }
  }

 private:
  static DistributedOptimizer::Options options(Shard shard, std::uint64_t seed) {
    DistributedOptimizer::Options options;
    options.shard = shard;
    options.bucket_bytes = 400;
    const bool has_two_passes = seed % 2 == 0;
    if (has_two_passes) options.backward_passes_per_step = 2;
    if (has_two_passes && shard >= Shard::Gradients) options.accumulation = Accumulation::Reduced;
    return options;
  }

  void take(const Step& step, int number) {
    if (step.kind == Kind::Fail) {
      expect_contains(text_thrown_by<std::runtime_error>([&] { pass(step, number, 0); }),
                      "a bad batch");
      return zero(step);
    }
    for (int i = 0; i < step.passes; ++i) {
      if (program_.has_two_passes || i + 1 == step.passes) {
        pass(step, number, i);
      } else {
        const auto guard = optimizer_.no_sync();
        pass(step, number, i);
      }
    }
    if (step.kind == Kind::Skip) return zero(step);
    change_gradients(step);
    EXPECT_TRUE(scaler_.step(optimizer_));
    scaler_.update();
    zero(step);
  }

  void pass(const Step& step, int number, int pass) {
    const auto rank = static_cast<std::size_t>(rank_);
    const std::int64_t rows = step.rows[rank][static_cast<std::size_t>(pass)];
    if (rows == 0 && !uses_alike_) return optimizer_.backward(scaler_.scale({}), 0);
    const at::Tensor loss = net_.loss(rows_of(number, rank_, pass, std::max<std::int64_t>(rows, 1)),
                                      step.used[rank], step.failing);
    if (step.has_counts) return optimizer_.backward(scaler_.scale(loss), rows);
    scaler_.scale(loss / (rows * step.passes)).backward();
  }

  void change_gradients(const Step& step) {
    const auto drop = [&] {
      for (const at::Tensor& parameter : net_.of_layer(step.dropped)) {
        parameter.mutable_grad().reset();
      }
    };
    if (step.dropped >= 0 && step.dropping == Dropping::BeforeReduction) drop();
    scaler_.unscale_(optimizer_);
    if (step.dropped >= 0 && step.dropping == Dropping::AfterReduction) {
      optimizer_.synchronize();
      drop();
    }
    if (step.dropped >= 0 && step.dropping == Dropping::ByVisitor) {
      const std::string prefix = "layer" + std::to_string(step.dropped) + "_";
      optimizer_.for_each_gradient([&](const std::string& name, at::Tensor& gradient) {
        if (name.starts_with(prefix)) gradient.reset();
      });
    }
    if (step.max_value > 0.0) optimizer_.clip_grad_value_(step.max_value);
    if (step.max_norm > 0.0) optimizer_.clip_grad_norm_(step.max_norm);
  }

  void zero(const Step& step) {
    switch (step.zeroing) {
      case Zeroing::ByWrapper: return optimizer_.zero_grad();
      case Zeroing::ByWrapped: return inner_->zero_grad();
      case Zeroing::ByModel: return net_.zero_grad();
    }
  }

  const Program& program_;
  const int rank_;
  const bool uses_alike_;
  std::unique_ptr<torch::optim::Optimizer> inner_;
  DistributedOptimizer optimizer_;
  GradScaler scaler_;
};

/// A loop, and how it goes in one process. `uses_alike`: all ranks must use the same layers.
class RandomLoop {
 public:
  RandomLoop(std::uint64_t seed, int ranks, bool uses_alike)
      : seed_(seed),
        uses_alike_(uses_alike),
        program_(random_program(seed, ranks, uses_alike)),
        expected_(Reference(seed).run(program_)) {}

  /// Runs it on this rank, and expects that it goes as in one process.
  void run(Shard shard, const Runtime& runtime) const {
    Distributed(seed_, program_, shard, runtime, uses_alike_).run(expected_);
  }

 private:
  const std::uint64_t seed_;
  const bool uses_alike_;
  const Program program_;
  const std::vector<Snapshot> expected_;
};

}  // namespace kolo::test::random_training

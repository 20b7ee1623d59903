// Training that goes on from a checkpoint, at any number of ranks and with any sharding.
#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/checkpoint.hpp"
#include "kolo/error.hpp"
#include "kolo/grad_scaler.hpp"
#include "kolo/objects.hpp"
#include "torch/checkpoint/safetensors_reader.hpp"
#include "torch/sharding.hpp"

namespace kolo::test::training_checkpoint_test {

namespace fs = std::filesystem;
using namespace torch::optim;

constexpr std::int64_t kWidth = 9;
constexpr std::int64_t kBatch = 24;
constexpr Shard kAllModes[] = {Shard::None, Shard::Optimizer, Shard::Gradients};

/// A class that LibTorch does not know, with a number, a tensor for every element, and another.
class CountingState final : public OptimizerCloneableParamState<CountingState> {
 public:
  void serialize(torch::serialize::InputArchive& archive) override {
    c10::IValue value;
    archive.read("count", value);
    count = value.toInt();
    archive.read("sum", sum);
    archive.read("pair", pair);
  }
  void serialize(torch::serialize::OutputArchive& archive) const override {
    archive.write("count", c10::IValue(count));
    archive.write("sum", sum);
    archive.write("pair", pair);
  }
  std::int64_t count = 0;
  at::Tensor sum;
  at::Tensor pair = torch::tensor({3.0, 4.0});
};
class CountingOptimizer final : public Optimizer {
 public:
  explicit CountingOptimizer(Parameters parameters)
      : Optimizer(std::move(parameters), std::make_unique<OwnOptions>()) {}
  at::Tensor step(LossClosure = nullptr) override {
    const at::NoGradGuard no_grad;
    for (auto& group : param_groups()) {
      for (at::Tensor& parameter : group.params()) {
        if (!parameter.grad().defined()) continue;
        auto& place = state()[parameter.unsafeGetTensorImpl()];
        if (!place) place = std::make_unique<CountingState>();
        auto& own = static_cast<CountingState&>(*place);
        if (!own.sum.defined()) own.sum = torch::zeros_like(parameter);
        own.sum.mul_(0.9).add_(parameter.grad());
        parameter.sub_(own.sum,
                       0.01 / static_cast<double>(++own.count) * own.pair[1].item<double>());
      }
    }
    return {};
  }
};

std::vector<OptimizerCase> cases() {
  return {
      {"sgd", maker<SGD>(SGDOptions(0.05).momentum(0.9))},
      {"plain_sgd", maker<SGD>(SGDOptions(0.05))},
      {"adamw", maker<AdamW>(AdamWOptions(1e-2).eps(1e-4).amsgrad(true))},
      {"rmsprop", maker<RMSprop>(RMSpropOptions(1e-3).momentum(0.9).eps(1e-4).centered(true))},
      {"adagrad", maker<Adagrad>(AdagradOptions(1e-2).lr_decay(0.01))},
      {"own", [](Parameters all) { return std::make_unique<CountingOptimizer>(all); }},
  };
}

/// A model with a buffer, a frozen parameter, one under two names, and one that is never used.
struct Net : torch::nn::Module {
  explicit Net(std::uint64_t seed) {
    torch::manual_seed(seed);
    first = register_module("first", torch::nn::Linear(kWidth, kWidth));
    second = register_module("second", torch::nn::Linear(kWidth, kWidth));
    second->weight = second->register_parameter("tied", first->weight);
    frozen = register_parameter("frozen", torch::randn({kWidth}), false);
    unused = register_parameter("unused", torch::randn({5}));
    passes = register_buffer("passes", torch::zeros({2}, torch::kLong));
  }
  at::Tensor forward(const at::Tensor& rows) {
    passes[0] += 1;
    return second->forward(torch::tanh(first->forward(rows)) * frozen);
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
  at::Tensor frozen, unused, passes;
};

at::Tensor flat_of(const Net& net) {
  return torch::cat({net.first->weight.flatten(), net.first->bias, net.second->bias, net.frozen,
                     net.unused, net.passes.to(torch::kFloat)})
      .detach();
}

/// Each once: LibTorch lists a tied one twice, and would update it twice.
Parameters parameters_of(const Net& net) {
  Parameters parameters;
  std::set<const void*> known;
  for (const at::Tensor& parameter : net.parameters()) {
    if (known.insert(parameter.unsafeGetTensorImpl()).second) parameters.push_back(parameter);
  }
  return parameters;
}

/// A model, its optimizer, and steps in them, among the ranks of a set.
struct Training {
  Training(const OptimizerCase& which, ProcessSet& of, Shard shard, std::uint64_t seed = 3,
           ShardScope scope = ShardScope::World)
      : set(of), net(std::make_shared<Net>(seed)), inner(which.make(parameters_of(*net))) {
    DistributedOptimizer::Options options = with(shard);
    options.process_set = &set;
    options.shard_scope = scope;
    optimizer = std::make_unique<DistributedOptimizer>(*inner, *net, options);
  }
  void run(int begin, int end) {
    for (int step = begin; step < end; ++step) {
      optimizer->zero_grad();
      const std::int64_t rows = kBatch / set.size();
      const at::Tensor batch = batch_rows(step, set.rank() * rows, rows, kWidth, torch::kFloat32);
      net->forward(batch).pow(2).mean().backward();
      optimizer->step();
    }
  }
  ProcessSet& set;
  std::shared_ptr<Net> net;
  std::unique_ptr<Optimizer> inner;
  std::unique_ptr<DistributedOptimizer> optimizer;
};

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest() {
    folder_ = broadcast_object(
        (fs::temp_directory_path() / ("kolo-checkpoint-" + std::to_string(getpid()))).string(), 0);
  }
  ~CheckpointTest() override {
    barrier();
    if (runtime_.rank() == 0) fs::remove_all(folder_);
    barrier();
  }
  /// A set of the first `ranks` ranks, the same one each time.
  ProcessSet& first(int ranks) {
    if (ranks == runtime_.size()) return runtime_.world();
    auto& set = sets_[static_cast<std::size_t>(ranks)];
    if (set == nullptr) {
      std::vector<int> members;
      for (int rank = 0; rank < ranks; ++rank) members.push_back(rank);
      set = &runtime_.add_process_set(members);
    }
    return *set;
  }

  Runtime runtime_;
  fs::path folder_;
  std::array<ProcessSet*, 8> sets_{};
};

class CheckpointOfTest : public CheckpointTest,
                         public testing::WithParamInterface<OptimizerCase> {};
INSTANTIATE_TEST_SUITE_P(Optimizers, CheckpointOfTest, testing::ValuesIn(cases()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(CheckpointOfTest, TrainingGoesOnInEveryModeAsIfNothingHadHappened) {
  Training whole(GetParam(), runtime_.world(), Shard::None);
  whole.run(0, 7);
  const at::Tensor expected = flat_of(*whole.net);
  for (const Shard saved : kAllModes) {
    Training before(GetParam(), runtime_.world(), saved);
    before.run(0, 4);
    before.optimizer->save(folder_);
    before.run(4, 7);  // saving has changed nothing
    expect_alike(flat_of(*before.net), expected);
    for (const Shard mode : kAllModes) {
      Training after(GetParam(), runtime_.world(), mode, 99);
      EXPECT_EQ(after.optimizer->load(folder_).steps, 4);
      after.run(4, 7);
      expect_alike(flat_of(*after.net), expected, name_of(mode).data());
    }
    // Into one that has trained already.
    before.optimizer->load(folder_);
    before.run(4, 7);
    expect_alike(flat_of(*before.net), expected);
  }
}

TEST_P(CheckpointOfTest, TrainingGoesOnAtAnyNumberOfRanks) {
  std::vector<Shard> modes(std::begin(kAllModes), std::end(kAllModes));
  for (const Shard saved : {Shard::Optimizer, Shard::Gradients}) {
    Training before(GetParam(), runtime_.world(), saved);
    before.run(0, 4);
    before.optimizer->save(folder_);
    before.run(4, 7);
    for (int ranks = 1; ranks < runtime_.size(); ++ranks) {
      ProcessSet& set = first(ranks);
      if (!set.included()) continue;
      std::optional<at::Tensor> whole;
      for (const Shard mode : modes) {
        Training after(GetParam(), set, mode, 99);
        after.optimizer->load(folder_);
        after.run(4, 7);
        if (!whole) whole = flat_of(*after.net);
        expect_alike(flat_of(*after.net).narrow(0, 0, 100), whole->narrow(0, 0, 100));
      }
      // passes, a buffer, was counted by the ranks of the first.
      EXPECT_LT(largest_difference(*whole, flat_of(*before.net)), 1e-6) << ranks;
    }
    barrier();
    // And back: what one rank has saved, all load.
    ProcessSet& alone = first(1);
    if (alone.included()) {
      Training one(GetParam(), alone, saved);
      one.run(0, 4);
      one.optimizer->save(folder_ / "alone");
    }
    barrier();
    Training after(GetParam(), runtime_.world(), saved, 99);
    after.optimizer->load(folder_ / "alone");
    after.run(4, 7);
    EXPECT_LT(largest_difference(flat_of(*after.net), flat_of(*before.net)), 1e-6);
  }
}

TEST_F(CheckpointTest, NodesThatKeepTheSamePartsSaveThemOnce) {
  const OptimizerCase adamw = cases()[2];
  Training before(adamw, runtime_.world(), Shard::Gradients, 3, ShardScope::Node);
  before.run(0, 4);
  before.optimizer->save(folder_);
  before.run(4, 7);
  for (const ShardScope scope : {ShardScope::World, ShardScope::Node}) {
    Training after(adamw, runtime_.world(), Shard::Optimizer, 99, scope);
    after.optimizer->load(folder_);
    after.run(4, 7);
    EXPECT_LT(largest_difference(flat_of(*after.net), flat_of(*before.net)), 1e-6);
  }
}

TEST_F(CheckpointTest, OptionsScalerRandomNumbersAndExtrasComeBack) {
  const OptimizerCase adamw = cases()[2];
  Training before(adamw, runtime_.world(), Shard::Optimizer);
  before.run(0, 2);
  before.inner->param_groups()[0].options().set_lr(0.125);
  GradScaler scaler;
  scaler.set_state({.scale = 512.0,
                    .growth_factor = 3.0,
                    .backoff_factor = 0.25,
                    .growth_interval = 7,
                    .growth_tracker = 5});
  torch::manual_seed(static_cast<std::uint64_t>(40 + runtime_.rank()));
  before.optimizer->save(folder_, {.scaler = &scaler, .extras = {{"epoch", "3"}, {"é", "\n\""}}});
  const at::Tensor random = torch::rand({5});

  Training after(adamw, runtime_.world(), Shard::Gradients, 99);
  GradScaler other;
  const Loaded loaded = after.optimizer->load(folder_, {.scaler = &other});
  EXPECT_EQ(loaded.extras, (std::map<std::string, std::string>{{"epoch", "3"}, {"é", "\n\""}}));
  EXPECT_EQ(loaded.steps, 2);
  EXPECT_EQ(loaded.path.parent_path(), folder_);
  EXPECT_EQ(after.inner->param_groups()[0].options().get_lr(), 0.125);
  EXPECT_EQ(after.optimizer->param_groups()[0].options().get_lr(), 0.125);
  EXPECT_EQ(other.state(), scaler.state());
  EXPECT_TRUE(torch::equal(torch::rand({5}), random));
  EXPECT_EQ(after.net->passes[0].item<std::int64_t>(), 2);
}

TEST_F(CheckpointTest, OldOnesGo) {
  Training training(cases()[0], runtime_.world(), Shard::Optimizer);
  std::vector<at::Tensor> saved;
  const auto save = [&](int keep_last) {
    const int step = static_cast<int>(saved.size());
    training.run(step, step + 1);
    saved.push_back(flat_of(*training.net).clone());
    training.optimizer->save(folder_, {.keep_last = keep_last});
  };
  /// That these are there, and that each has the values of its own save.
  const auto expect_left = [&](const std::vector<int>& numbers) {
    barrier();
    std::set<std::string> expected{".lock"};
    for (const int number : numbers) expected.insert("checkpoint-0000000" + std::to_string(number));
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      names.insert(entry.path().filename().string());
    }
    EXPECT_EQ(names, expected);
    barrier();
    for (const int number : numbers) {
      Training other(cases()[0], runtime_.world(), Shard::Optimizer, 99);
      const Loaded loaded =
          other.optimizer->load(folder_ / ("checkpoint-0000000" + std::to_string(number)));
      EXPECT_EQ(loaded.steps, number);
      EXPECT_TRUE(torch::equal(flat_of(*other.net), saved[static_cast<std::size_t>(number) - 1]));
    }
  };
  for (int i = 0; i < 3; ++i) save(2);
  expect_left({2, 3});
  save(1);
  expect_left({4});
}

TEST_F(CheckpointTest, ModelsOfPlainFilesAreLoaded) {
  Net saved(55);
  saved.passes[1] = 12;
  const std::string file = (folder_ / "model.pt").string();
  fs::create_directories(folder_);
  barrier();
  if (runtime_.rank() == 0) {
    torch::serialize::OutputArchive archive;
    saved.save(archive);
    archive.save_to(file);
  }
  barrier();
  for (const Shard mode : kAllModes) {
    Training training(cases()[2], runtime_.world(), mode, 99);
    training.run(0, 2);
    training.optimizer->load(file);
    EXPECT_TRUE(torch::equal(flat_of(*training.net), flat_of(saved)));
    training.run(2, 3);
    expect_equal_on_all_ranks(flat_of(*training.net));
  }
}

TEST_F(CheckpointTest, TheFullStateIsOneFile) {
  at::Tensor kept;
  for (const Shard mode : kAllModes) {
    Training training(cases()[2], runtime_.world(), mode);
    training.run(0, 3);
    const int root = runtime_.size() - 1;
    const fs::path file = folder_ / (std::string(name_of(mode)) + ".safetensors");
    training.optimizer->save_full_state(file, root);
    const tensors::SafetensorsReader reader(file);
    const auto read = [&](const std::string& name, std::int64_t count) {
      at::Tensor values = torch::empty({count});
      reader.read(name, DType::Float32, 0,
                  {static_cast<std::byte*>(values.data_ptr()), values.nbytes()});
      return values;
    };
    EXPECT_EQ(reader.tensors().at("first.weight").shape, (std::vector<std::int64_t>{9, 9}));
    EXPECT_TRUE(
        torch::equal(read("first.weight", 81), training.net->first->weight.detach().flatten()));
    EXPECT_EQ(reader.tensors().count("optimizer.exp_avg.unused"), 0U);
    EXPECT_EQ(reader.tensors().at("optimizer.exp_avg.first.weight").shape,
              (std::vector<std::int64_t>{9, 9}));
    const at::Tensor moments = torch::cat(
        {read("optimizer.exp_avg.first.weight", 81), read("optimizer.exp_avg_sq.second.bias", 9)});
    if (mode == Shard::None) {  // where each rank has all of it
      const auto state_of = [&](const at::Tensor& parameter) -> const AdamWParamState& {
        return static_cast<const AdamWParamState&>(
            *training.inner->state().at(parameter.unsafeGetTensorImpl()));
      };
      kept = torch::cat({state_of(training.net->first->weight).exp_avg().flatten(),
                         state_of(training.net->second->bias).exp_avg_sq()});
    }
    expect_alike(moments, kept);
    Training other(cases()[2], runtime_.world(), mode, 99);
    other.optimizer->load(file);
    EXPECT_TRUE(torch::equal(flat_of(*other.net), flat_of(*training.net)));
    EXPECT_THROW(training.optimizer->save_full_state(folder_ / "x" / "y" / "none" / "\0", 77),
                 InvalidArgument);
  }
}

/// The text with which `call` fails, the same kind on every rank.
std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

TEST_F(CheckpointTest, WhatDoesNotFitIsRefusedAndChangesNothing) {
  const OptimizerCase adamw = cases()[2];
  Training saved(adamw, runtime_.world(), Shard::Optimizer);
  saved.run(0, 2);
  saved.optimizer->save(folder_);

  const auto expect_refusal = [&](Training& training, const LoadOptions& options,
                                  const std::string& text) {
    const at::Tensor before = flat_of(*training.net).clone();
    const std::string error = error_of([&] { training.optimizer->load(folder_, options); });
    EXPECT_NE(error.find(text), std::string::npos) << error;
    EXPECT_TRUE(torch::equal(flat_of(*training.net), before));
  };
  Training other(cases()[0], runtime_.world(), Shard::Optimizer, 99);
  expect_refusal(other, {}, "AdamW");
  other.optimizer->load(folder_, {.optimizer_state = false});
  EXPECT_TRUE(torch::equal(flat_of(*other.net), flat_of(*saved.net)));

  Training wider(adamw, runtime_.world(), Shard::Optimizer, 99);
  wider.net->passes = wider.net->register_buffer("more", torch::zeros({3}));
  DistributedOptimizer with_more(*wider.inner, *wider.net, with(Shard::Gradients));
  EXPECT_NE(error_of([&] { with_more.load(folder_); }).find("has no 'model.more'"),
            std::string::npos);
  const Loaded loaded = with_more.load(folder_, {.strict = false});
  EXPECT_EQ(loaded.steps, 2);
  EXPECT_TRUE(torch::equal(wider.net->first->weight, saved.net->first->weight));

  GradScaler scaler;
  Training same(adamw, runtime_.world(), Shard::Gradients, 99);
  expect_refusal(same, {.scaler = &scaler}, "no GradScaler's state");
  EXPECT_NE(error_of([&] { same.optimizer->load(folder_ / "nowhere"); }).find("nowhere"),
            std::string::npos);

  // One byte of one file.
  barrier();
  const fs::path shard = loaded.path / "rank-0000.safetensors";
  if (runtime_.rank() == 0) {
    std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-3, std::ios::end);
    const char byte = static_cast<char>(file.get() ^ 1);
    file.seekp(-3, std::ios::end);
    file.put(byte);
  }
  barrier();
  expect_refusal(same, {}, "rank-0000.safetensors");
  same.run(0, 1);
}

TEST_F(CheckpointTest, GradientsInFlightAreInTheWayOfLoading) {
  Training training(cases()[0], runtime_.world(), Shard::Optimizer);
  training.run(0, 1);
  training.optimizer->save(folder_);
  training.net->forward(torch::ones({2, kWidth})).sum().backward();
  EXPECT_THROW(training.optimizer->load(folder_), InvalidArgument);
  training.optimizer->save(folder_);  // is not
  training.optimizer->step();
}

TEST_F(CheckpointTest, TorchSaveIsForWholeState) {
  for (const Shard mode : kModes) {
    Training training(cases()[2], runtime_.world(), mode);
    std::ostringstream stream;
    torch::save(*training.optimizer, stream);  // nothing is divided yet
    training.run(0, 1);
    EXPECT_NE(error_of([&] { torch::save(*training.optimizer, stream); }).find("save(folder)"),
              std::string::npos);
  }
}

}  // namespace kolo::test::training_checkpoint_test

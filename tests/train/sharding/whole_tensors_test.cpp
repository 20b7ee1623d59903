// Optimizers that look at whole tensors, in every shard mode, against one process.
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/error.hpp"
#include "kolo/extras/adamw_8bit.hpp"
#include "kolo/extras/muon.hpp"
#include "kolo/torch/tensor_needs.hpp"
#include "support/errors.hpp"
#include "support/mpi/variants.hpp"
#include "train/models.hpp"
#include "train/sharding.hpp"
#include "train/training_checkpoints.hpp"

namespace kolo::test::whole_tensors_test {

const AlsoIn also_in({"messages", "nodes"});

constexpr std::int64_t kWidth = 9;
constexpr double kRate = 0.03;

using Slots = std::map<std::string, at::Tensor>;
/// Steps a parameter by its gradient, with what an earlier step has left in `slots`.
using Update = std::function<void(at::Tensor& parameter, at::Tensor gradient, Slots& slots)>;

/// The state of a user's optimizer: tensors of any shape.
struct SlotState : torch::optim::OptimizerCloneableParamState<SlotState> {
  Slots slots;
  void serialize(torch::serialize::InputArchive& archive) override {
    for (const std::string& name : archive.keys()) archive.read(name, slots[name]);
  }
  void serialize(torch::serialize::OutputArchive& archive) const override {
    for (const auto& [name, tensor] : slots) archive.write(name, tensor);
  }
};

/// A user's optimizer, which says nothing of what it needs.
class UserOptimizer : public Optimizer {
 public:
  UserOptimizer(Parameters parameters, Update update)
      : Optimizer(std::move(parameters), std::make_unique<OwnOptions>(kRate)),
        update_(std::move(update)) {}
  at::Tensor step(LossClosure closure = nullptr) override {
    at::Tensor loss;
    if (closure) {
      const at::AutoGradMode enable(true);
      loss = closure();
    }
    const at::NoGradGuard no_grad;
    for (auto& group : param_groups()) {
      for (at::Tensor& parameter : group.params()) {
        if (!parameter.grad().defined()) continue;
        auto& state = this->state()[parameter.unsafeGetTensorImpl()];
        if (state == nullptr) state = std::make_unique<SlotState>();
        update_(parameter, parameter.grad().clone(), static_cast<SlotState&>(*state).slots);
      }
    }
    return loss;
  }
  void save(torch::serialize::OutputArchive& archive) const override {
    torch::optim::serialize<SlotState, OwnOptions>(archive, *this);
  }
  void load(torch::serialize::InputArchive& archive) override {
    torch::optim::serialize<SlotState, OwnOptions>(archive, *this);
  }

 private:
  Update update_;
};

/// The slot's value, at first zeros like `like`.
at::Tensor& slot(Slots& slots, const std::string& name, const at::Tensor& like) {
  at::Tensor& value = slots[name];
  if (!value.defined()) value = at::zeros_like(like);
  return value;
}

double length(const at::Tensor& tensor) { return tensor.norm().item<double>(); }

void step_lamb(at::Tensor& parameter, at::Tensor gradient, Slots& slots) {
  at::Tensor& mean = slot(slots, "mean", gradient).lerp_(gradient, 0.1);
  at::Tensor& square = slot(slots, "square", gradient).lerp_(gradient * gradient, 0.01);
  const at::Tensor update = mean / (square.sqrt() + 1e-4) + 0.01 * parameter;
  parameter.sub_(kRate * length(parameter) / length(update) * update);
}

void step_lars(at::Tensor& parameter, at::Tensor gradient, Slots& slots) {
  gradient.mul_(length(parameter) / (length(gradient) + 1e-6));
  parameter.sub_(kRate * slot(slots, "momentum", gradient).mul_(0.9).add_(gradient));
}

void step_adafactor(at::Tensor& parameter, at::Tensor gradient, Slots& slots) {
  const at::Tensor square = gradient * gradient + 1e-8;
  at::Tensor scale;
  if (parameter.dim() >= 2) {
    at::Tensor& rows = slot(slots, "rows", square.mean(1)).lerp_(square.mean(1), 0.1);
    at::Tensor& columns = slot(slots, "columns", square.mean(0)).lerp_(square.mean(0), 0.1);
    scale = at::outer(rows, columns) / rows.mean();
  } else {
    scale = slot(slots, "all", square).lerp_(square, 0.1);
  }
  const at::Tensor update = gradient / scale.sqrt();
  const double size = std::sqrt(update.square().mean().item<double>());
  parameter.sub_(kRate * update / std::max(1.0, size));
}

/// The power -1/4 of a symmetric matrix.
at::Tensor root(const at::Tensor& matrix) {
  const auto [values, vectors] = at::linalg_eigh(matrix);
  return at::mm(vectors * values.clamp_min(1e-6).pow(-0.25), vectors.t());
}

void step_shampoo(at::Tensor& parameter, at::Tensor gradient, Slots& slots) {
  if (parameter.dim() == 2) {
    at::Tensor left = slot(slots, "left", at::mm(gradient, gradient.t()));
    at::Tensor right = slot(slots, "right", at::mm(gradient.t(), gradient));
    left.addmm_(gradient, gradient.t());
    right.addmm_(gradient.t(), gradient);
    gradient = at::mm(at::mm(root(left), gradient), root(right));
  }
  parameter.sub_(kRate * gradient);
}

/// Adaptive gradient clipping.
void step_agc(at::Tensor& parameter, at::Tensor gradient, Slots&) {
  const double most = 0.05 * std::max(length(parameter), 1e-3);
  if (length(gradient) > most) gradient.mul_(most / length(gradient));
  parameter.sub_(gradient);
}

void step_centralized(at::Tensor& parameter, at::Tensor gradient, Slots& slots) {
  if (parameter.dim() >= 2) gradient.sub_(gradient.mean(1, /*keepdim=*/true));
  parameter.sub_(kRate * slot(slots, "momentum", gradient).mul_(0.9).add_(gradient));
}

/// SGD that decays matrices alone.
void step_decayed(at::Tensor& parameter, at::Tensor gradient, Slots&) {
  if (parameter.dim() >= 2) parameter.mul_(0.99);
  parameter.sub_(kRate * gradient);
}

/// Matrices but the last by Muon's iterations, the others by its AdamW.
std::unique_ptr<Optimizer> make_muon(Parameters parameters) {
  const MuonOptions options = MuonOptions(kRate).eps(1e-4);
  const Parameters last(parameters.end() - 2, parameters.end());
  parameters.resize(parameters.size() - 2);
  return std::make_unique<Muon>(
      std::vector<torch::optim::OptimizerParamGroup>{
          {parameters, std::make_unique<MuonOptions>(options)},
          {last, std::make_unique<MuonOptions>(MuonOptions(options).orthogonalizes(false))}},
      options);
}

template <void (*Step)(at::Tensor&, at::Tensor, Slots&)>
std::unique_ptr<Optimizer> make(Parameters parameters) {
  return std::make_unique<UserOptimizer>(std::move(parameters), Step);
}

constexpr int kSteps = 4;

/// The gradients of all ranks' batches, averaged.
void train_alone(int ranks, int step, torch::nn::Sequential& model, Optimizer& optimizer) {
  optimizer.zero_grad();
  for (int rank = 0; rank < ranks; ++rank) {
    const at::Tensor rows = batch_rows(step, 2 * rank, 2, kWidth, torch::kFloat64);
    (loss_of(model, rows) / ranks).backward();
  }
  optimizer.step();
}

at::Tensor trained_alone(int ranks, const MakeOptimizer& make) {
  torch::nn::Sequential model = make_mlp(torch::kFloat64);
  const std::unique_ptr<Optimizer> optimizer = make(model->parameters());
  for (int step = 0; step < kSteps; ++step) train_alone(ranks, step, model, *optimizer);
  return flat(*model);
}

class WholeTensorsTest : public training_checkpoint_test::CheckpointTest,
                         public testing::WithParamInterface<OptimizerCase> {
 protected:
  void train(int step, torch::nn::Sequential& model, DistributedOptimizer& optimizer) const {
    optimizer.zero_grad();
    loss_of(model, batch_rows(step, 2 * rank(), 2, kWidth, torch::kFloat64)).backward();
    optimizer.step();
  }
};

INSTANTIATE_TEST_SUITE_P(Optimizers, WholeTensorsTest,
                         testing::Values(OptimizerCase{"Lamb", make<step_lamb>},
                                         OptimizerCase{"Lars", make<step_lars>},
                                         OptimizerCase{"Adafactor", make<step_adafactor>},
                                         OptimizerCase{"Shampoo", make<step_shampoo>},
                                         OptimizerCase{"Agc", make<step_agc>},
                                         OptimizerCase{"Centralized", make<step_centralized>},
                                         OptimizerCase{"Decayed", make<step_decayed>},
                                         OptimizerCase{"Muon", make_muon}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(WholeTensorsTest, Steps_AreThoseOfOneProcess) {
  const at::Tensor alone = trained_alone(size(), GetParam().make);
  for (const Shard shard : all_modes()) {
    torch::nn::Sequential model = make_mlp(torch::kFloat64);
    const std::unique_ptr<Optimizer> inner = GetParam().make(model->parameters());
    DistributedOptimizer optimizer(*inner, *model, with(shard));
    for (int step = 0; step < kSteps; ++step) train(step, model, optimizer);
    optimizer.full_parameters(
        [&] { EXPECT_LT(largest_difference(flat(*model), alone), 1e-9) << name_of(shard); });
  }
}

TEST_P(WholeTensorsTest, Checkpoints_ContinueInAnotherMode) {
  const at::Tensor alone = trained_alone(size(), GetParam().make);
  const std::vector<Shard> modes = all_modes();
  for (std::size_t i = 0; i < modes.size(); ++i) {
    const auto folder = folder_ / std::to_string(i);
    {
      torch::nn::Sequential model = make_mlp(torch::kFloat64);
      const std::unique_ptr<Optimizer> inner = GetParam().make(model->parameters());
      DistributedOptimizer optimizer(*inner, *model, with(modes[i]));
      for (int step = 0; step < kSteps / 2; ++step) train(step, model, optimizer);
      optimizer.save(folder);
    }
    torch::nn::Sequential model = make_mlp(torch::kFloat64);
    const std::unique_ptr<Optimizer> inner = GetParam().make(model->parameters());
    const Shard next = modes[(i + 1) % modes.size()];
    DistributedOptimizer optimizer(*inner, *model, with(next));
    optimizer.load(folder);
    for (int step = kSteps / 2; step < kSteps; ++step) train(step, model, optimizer);
    optimizer.full_parameters(
        [&] { EXPECT_LT(largest_difference(flat(*model), alone), 1e-9) << name_of(next); });
  }
}

class TensorNeedsTest : public TrainingTest {};

/// Perturbs parameters, and needs the gradients there.
class Sam final : public UserOptimizer {
 public:
  explicit Sam(Parameters parameters) : UserOptimizer(std::move(parameters), step_decayed) {}
  at::Tensor step(LossClosure closure = nullptr) override {
    closure();
    return UserOptimizer::step();
  }
};

TEST_F(TensorNeedsTest, AStepThatNeedsItsClosure_IsRefusedAtWrapping) {
  for (const Shard shard : sharded_modes()) {
    torch::nn::Sequential model = make_mlp(torch::kFloat64);
    Sam sam(model->parameters());
    const std::string text = text_thrown_by<InvalidArgument>(
        [&] { const DistributedOptimizer refused(sam, *model, with(shard)); });
    expect_contains(text, "Sam");
    expect_contains(text, "shard = none");
    EXPECT_TRUE(sam.state().empty());
  }
}

/// Counts its steps, so that it says what it needs.
template <class Needs>
class Counting final : public UserOptimizer, public Needs {
 public:
  explicit Counting(Parameters parameters) : UserOptimizer(std::move(parameters), step_lars) {}
  at::Tensor step(LossClosure closure = nullptr) override {
    ++steps;
    return UserOptimizer::step(std::move(closure));
  }
  int steps = 0;
};

TEST_F(TensorNeedsTest, AClassThatSaysWhatItNeeds_IsNotProbed) {
  torch::nn::Sequential model = make_mlp(torch::kFloat64);
  Counting<WholeTensors> whole(model->parameters());
  DistributedOptimizer optimizer(whole, *model, with(Shard::Gradients));
  EXPECT_EQ(whole.steps, 0);
  EXPECT_TRUE(whole.state().empty());

  torch::nn::Sequential other = make_mlp(torch::kFloat64);
  Counting<Elementwise> pieces(other->parameters());
  DistributedOptimizer of_pieces(pieces, *other, with(Shard::Gradients));
  EXPECT_EQ(pieces.steps, 0);
}

TEST_F(TensorNeedsTest, Codecs_EncodeWholeTensors) {
  const MakeOptimizer make_lamb = make<step_lamb>;
  const at::Tensor alone = trained_alone(size(), make_lamb);
  const double moved = largest_difference(alone, flat(*make_mlp(torch::kFloat64)));
  for (const Shard shard : sharded_modes()) {
    torch::nn::Sequential model = make_mlp(torch::kFloat64);
    const std::unique_ptr<Optimizer> inner = make_lamb(model->parameters());
    DistributedOptimizer::Options options = with(shard);
    options.compression = Compression::int8();
    DistributedOptimizer optimizer(*inner, *model, options);
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      loss_of(model, batch_rows(step, 2 * rank(), 2, kWidth, torch::kFloat64)).backward();
      optimizer.step();
    }
    optimizer.full_parameters(
        [&] { EXPECT_LT(largest_difference(flat(*model), alone), 0.3 * moved) << name_of(shard); });
  }
}

TEST_F(TensorNeedsTest, ARateOf0AtWrapping_IsNotTakenForElementwise) {
  const at::Tensor alone = trained_alone(size(), make<step_lars>);
  torch::nn::Sequential model = make_mlp(torch::kFloat64);
  double factor = 0.0;
  UserOptimizer inner(model->parameters(),
                      [&](at::Tensor& parameter, at::Tensor gradient, Slots& slots) {
                        if (factor != 0.0) step_lars(parameter, std::move(gradient), slots);
                      });
  DistributedOptimizer optimizer(inner, *model, with(Shard::Gradients));
  factor = 1.0;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    loss_of(model, batch_rows(step, 2 * rank(), 2, kWidth, torch::kFloat64)).backward();
    optimizer.step();
  }
  optimizer.full_parameters([&] { EXPECT_LT(largest_difference(flat(*model), alone), 1e-9); });
}

/// Large enough for state of 8 bits.
torch::nn::Sequential make_wide() {
  torch::manual_seed(3);
  torch::nn::Sequential model(torch::nn::Linear(90, 60));
  model->push_back(torch::nn::Linear(60, 3));
  return model;
}

struct Wide {
  explicit Wide(Shard shard)
      : model(make_wide()),
        inner(model->parameters(), AdamW8bitOptions(1e-2)),
        optimizer(inner, *model, with(shard)) {}
  void run(int rank, int begin, int end) {
    for (int step = begin; step < end; ++step) {
      optimizer.zero_grad();
      loss_of(model, batch_rows(step, 2 * rank, 2, 90, torch::kFloat32)).backward();
      optimizer.step();
    }
  }
  at::Tensor parameters() {
    at::Tensor all;
    optimizer.full_parameters([&] { all = flat(*model); });
    return all;
  }

  torch::nn::Sequential model;
  AdamW8bit inner;
  DistributedOptimizer optimizer;
};

class WideTest : public training_checkpoint_test::CheckpointTest {};

TEST_F(WideTest, BlocksOf8Bits_AreTheSameInAllModes_AndInCheckpoints) {
  Wide whole(Shard::None);
  whole.run(rank(), 0, 4);
  const std::vector<Shard> modes = all_modes();
  for (std::size_t i = 0; i < modes.size(); ++i) {
    const auto folder = folder_ / std::to_string(i);
    {
      Wide first(modes[i]);
      first.run(rank(), 0, 2);
      first.optimizer.save(folder);
    }
    Wide second(modes[(i + 1) % modes.size()]);
    second.optimizer.load(folder);
    second.run(rank(), 2, 4);
    expect_alike(second.parameters(), whole.parameters(), name_of(modes[i]).data());
  }
}

TEST_F(TensorNeedsTest, AProbe_LeavesNeitherStateNorRandomNumbers) {
  torch::nn::Sequential model = make_mlp(torch::kFloat64);
  UserOptimizer inner(model->parameters(), [](at::Tensor& parameter, at::Tensor gradient, Slots&) {
    parameter.sub_(kRate * gradient + at::randn_like(gradient));
  });
  const at::Tensor before = flat(*model);
  torch::manual_seed(5);
  const at::Tensor expected = torch::randn({4});
  torch::manual_seed(5);
  DistributedOptimizer optimizer(inner, *model, with(Shard::Optimizer));
  EXPECT_TRUE(torch::equal(torch::randn({4}), expected));
  EXPECT_TRUE(torch::equal(flat(*model), before));
  EXPECT_TRUE(inner.state().empty());
}

TEST_F(TensorNeedsTest, AParameterInPieces_CannotMoveToAGroupOfWholeTensors) {
  torch::nn::Sequential model = make_mlp(torch::kFloat64);
  const std::unique_ptr<Optimizer> muon = make_muon(model->parameters());
  DistributedOptimizer optimizer(*muon, *model, with(Shard::Optimizer));
  auto& groups = muon->param_groups();
  groups[0].params().push_back(groups[1].params().front());
  groups[1].params().erase(groups[1].params().begin());
  loss_of(model, batch_rows(0, 2 * rank(), 2, kWidth, torch::kFloat64)).backward();
  for (int i = 0; i < 2; ++i) {
    expect_contains(text_thrown_by<InvalidArgument>([&] { optimizer.step(); }), "in pieces");
  }
}

}  // namespace kolo::test::whole_tensors_test

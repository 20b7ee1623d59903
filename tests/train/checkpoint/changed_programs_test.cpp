// A program that has changed since it was wrapped, or since another one saved: what is saved and
// loaded is what the program has now, and what does not belong together is refused.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/DefaultDtype.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "checkpoint/safetensors.hpp"
#include "kolo/error.hpp"
#include "support/mpi/variants.hpp"
#include "train/checkpoint/checkpoint_image.hpp"
#include "train/sharding.hpp"
#include "train/small_training.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test::changed_programs_test {

const AlsoIn also_in({"uneven", "messages"});

using Names = std::vector<std::string>;
using torch::optim::Adam;
using torch::optim::AdamOptions;
using torch::optim::AdamW;
using torch::optim::AdamWOptions;
using torch::optim::OptimizerParamGroup;
using torch::optim::SGD;
using torch::optim::SGDOptions;

constexpr std::int64_t kElements = 301;  // more than one bucket holds

/// A weight, and a buffer.
struct Layer : torch::nn::Module {
  explicit Layer(double value, at::ScalarType type = at::kFloat) {
    weight = register_parameter("weight", torch::full({kElements}, value, type));
    mean = register_buffer("mean", torch::full({2}, value));
  }
  at::Tensor weight, mean;
};

/// Gradients of one in all of these, on every rank.
void train(DistributedOptimizer& optimizer, const Parameters& weights) {
  optimizer.zero_grad();
  at::Tensor loss = torch::zeros({});
  for (const at::Tensor& weight : weights) loss = loss + weight.to(at::kFloat).sum();
  loss.backward();
  optimizer.step();
}

void expect_value(const at::Tensor& tensor, double value, const std::string& what = {}) {
  EXPECT_TRUE(torch::equal(tensor.detach(), torch::full_like(tensor.detach(), value))) << what;
}

class ChangedProgramsTest : public TrainingTest, public testing::WithParamInterface<Shard> {
 protected:
  const std::filesystem::path& folder() const { return folder_.path(); }

  CommonFolder folder_;
};
INSTANTIATE_TEST_SUITE_P(Modes, ChangedProgramsTest, testing::ValuesIn(all_modes()),
                         [](const auto& test) { return std::string(name_of(test.param)); });

/// A model that gets another layer while it trains.
struct Growing : torch::nn::Module {
  Growing(double value, bool has_grown) : first(register_module("first", layer(value))) {
    if (has_grown) grow(value);
  }
  static std::shared_ptr<Layer> layer(double value) { return std::make_shared<Layer>(value); }
  void grow(double value) { late = register_module("late", layer(value)); }
  std::shared_ptr<Layer> first, late;
};

TEST_P(ChangedProgramsTest, ParametersOfNoModule_AreRefused_AndSeveralModulesAreSaved) {
  Layer actor(1.0), critic(2.0);
  SGD inner({actor.weight, critic.weight}, 0.5);
  {
    DistributedOptimizer of_one(inner, actor, with(GetParam()));
    expect_refused([&] { of_one.save(folder()); },
                   "parameter 1 of the groups, Float [301], has no");
    expect_refused([&] { of_one.save_full_state(folder() / "all"); }, "parameter 1 of the groups");
  }
  DistributedOptimizer of_both(inner, {{"actor", actor}, {"critic", critic}}, with(GetParam()));
  train(of_both, {actor.weight, critic.weight});
  const Names all{"actor.weight", "critic.weight", "actor.mean", "critic.mean"};
  EXPECT_EQ(of_both.save(folder()).saved, all);
  Layer other(0.0), another(0.0);
  DistributedOptimizer loaded(SGD({other.weight, another.weight}, 0.5),
                              {{"actor", other}, {"critic", another}}, with(GetParam()));
  EXPECT_EQ(loaded.load(folder()).loaded, all);
  expect_value(another.weight, 1.5);
  expect_value(another.mean, 2.0);
}

TEST_P(ChangedProgramsTest, Loaded_SaysWhatOneOfTwoOptimizersHasWritten) {
  const auto run = [](double value, Shard mode, const auto& use) {
    Growing model(value, /*has_grown=*/true);
    SGD inner_first({model.first->weight}, 0.5);
    SGD inner_late({model.late->weight}, 0.5);
    DistributedOptimizer first(inner_first, model, with(mode));
    DistributedOptimizer late(inner_late, model, with(mode));
    use(model, first, late);
  };
  run(3.0, GetParam(), [&](Growing&, DistributedOptimizer& first, DistributedOptimizer& late) {
    first.save(folder() / "first");
    late.save(folder() / "late");
    first.save_full_state(folder() / "all.safetensors");
  });
  const bool is_of_other = GetParam() == Shard::Full && gathers_on_use();
  for (const char* const path : {"first", "all.safetensors"}) {
    run(0.0, GetParam(),
        [&](Growing& model, DistributedOptimizer& first, DistributedOptimizer& late) {
          EXPECT_EQ(first.load(folder() / path).left_out,
                    is_of_other ? Names{"late.weight"} : Names{})
              << path;
          expect_value(model.first->weight, 3.0, path);
          expect_value(model.late->weight, is_of_other ? 0.0 : 3.0, path);
          late.load(folder() / "late");
          expect_value(model.late->weight, 3.0);
        });
  }
}

// The master copy of a frozen layer is kept by a program that only loads and saves, and by one that
// unfreezes it.
TEST_P(ChangedProgramsTest, MasterCopyOfAFrozenLayer_IsResumed) {
  if (GetParam() == Shard::None) GTEST_SKIP() << "shard = none has no master copies";
  DistributedOptimizer::Options options = with(GetParam());
  options.master_weights = true;
  const auto master_in = [&](const char* name) {
    return read_image(folder() / name).tensors.at("master.second.weight");
  };
  const auto run = [&](bool is_frozen, const auto& use) {
    Layer first(1.0, at::kBFloat16), second(1.0, at::kBFloat16);
    second.weight.set_requires_grad(!is_frozen);
    SGD inner({first.weight, second.weight}, SGDOptions(1e-4).momentum(0.5));
    DistributedOptimizer optimizer(inner, {{"first", first}, {"second", second}}, options);
    use(optimizer, first, second);
  };
  run(false, [&](DistributedOptimizer& optimizer, Layer& first, Layer& second) {
    train(optimizer, {first.weight, second.weight});
    expect_value(second.weight, 1.0);  // the master copy alone has changed
    optimizer.save(folder() / "trained");
  });
  run(true, [&](DistributedOptimizer& optimizer, Layer& first, Layer& second) {
    optimizer.load(folder() / "trained");
    optimizer.save(folder() / "frozen");
    optimizer.save_full_state(folder() / "frozen.safetensors");
    second.weight.set_requires_grad(true);
    optimizer.param_groups()[0].options().set_lr(0.0);
    train(optimizer, {first.weight, second.weight});
    optimizer.save(folder() / "unfrozen");
  });
  float value = 0;
  std::memcpy(&value, master_in("trained").bytes.data(), sizeof value);
  EXPECT_EQ(value, 1.0F - 1e-4F);
  EXPECT_TRUE(master_in("frozen") == master_in("trained"));
  EXPECT_TRUE(master_in("unfrozen") == master_in("trained"));
  const checkpoints::SafetensorsReader file(folder() / "frozen.safetensors");
  EXPECT_TRUE(file.tensors().contains("master.second.weight"));
}

/// Two layers in groups of their own or together, with these weight decays.
struct Grouped {
  using Group = std::pair<std::vector<int>, double>;  // layers, weight_decay

  Grouped(const std::vector<Group>& groups, Shard mode)
      : inner(groups_of(groups), SGDOptions(0.5)) {
    optimizer.emplace(inner, NamedModules{{"first", layers[0]}, {"second", layers[1]}}, with(mode));
  }
  std::vector<OptimizerParamGroup> groups_of(const std::vector<Group>& groups) {
    std::vector<OptimizerParamGroup> all;
    for (const auto& [members, decay] : groups) {
      Parameters weights;
      for (const int layer : members) weights.push_back(layers[layer].weight);
      all.emplace_back(
          weights, std::make_unique<SGDOptions>(SGDOptions(0.5).momentum(0.5).weight_decay(decay)));
    }
    return all;
  }
  double decay(std::size_t group) {
    return static_cast<SGDOptions&>(inner.param_groups()[group].options()).weight_decay();
  }
  Layer layers[2]{Layer(1.0), Layer(1.0)};
  SGD inner;
  std::optional<DistributedOptimizer> optimizer;
};

TEST_P(ChangedProgramsTest, GroupsAreMatchedByTheirMembers) {
  Grouped before({{{0}, 0.25}, {{1}, 0.0}}, GetParam());
  train(*before.optimizer, {before.layers[0].weight, before.layers[1].weight});
  before.optimizer->save(folder() / "apart");
  Grouped reversed({{{1}, 0.0}, {{0}, 0.125}}, GetParam());
  EXPECT_EQ(reversed.optimizer->load(folder() / "apart").replaced,
            Names{"weight_decay of parameter group 1: 0.125, now 0.25"});
  EXPECT_EQ(reversed.decay(0), 0.0);
  EXPECT_EQ(reversed.decay(1), 0.25);

  Grouped together({{{0, 1}, 0.5}}, GetParam());
  expect_refused([&] { together.optimizer->load(folder() / "apart"); },
                 "has parameter 'second.weight' in parameter group 1, and the program in group 0");
  EXPECT_EQ(together.optimizer->load(folder() / "apart", {.strict = false}).replaced, Names());
  EXPECT_EQ(together.decay(0), 0.5);
  together.optimizer->save(folder() / "together");
  expect_refused([&] { reversed.optimizer->load(folder() / "together"); }, "not with the same");
  reversed.optimizer->load(folder() / "together", {.strict = false});
  EXPECT_EQ(reversed.decay(0), 0.5);
  EXPECT_EQ(reversed.decay(1), 0.5);

  // Checkpoints of earlier versions do not name members.
  CheckpointImage image = read_image(folder() / "apart");
  image.details["members"].erase(std::size_t{1});
  write_image(folder() / "forged", image);
  expect_refused([&] { before.optimizer->load(folder() / "forged"); }, "'members' and 'groups'");
  image.details.erase("members");
  write_image(folder() / "older", image);
  Grouped older({{{0}, 0.125}, {{1}, 0.0}}, GetParam());
  older.optimizer->load(folder() / "older");
  EXPECT_EQ(older.decay(0), 0.25);
}

TEST_P(ChangedProgramsTest, OtherClassesAndSwitches_AreNotStrictlyTheSame) {
  const auto run = [&](const auto& inner_of, const auto& use) {
    Layer layer(1.0);
    DistributedOptimizer optimizer(inner_of(Parameters{layer.weight}), layer, with(GetParam()));
    use(optimizer, layer);
  };
  const auto adam = [](const Parameters& all) { return Adam(all, AdamOptions(0.5)); };
  const auto adamw = [](const Parameters& all) {
    return AdamW(all, AdamWOptions(0.5).weight_decay(0.0));
  };
  run(adam, [&](DistributedOptimizer& optimizer, Layer& layer) {
    train(optimizer, {layer.weight});
    optimizer.save(folder() / "adam");
  });
  run(adamw, [&](DistributedOptimizer& optimizer, Layer& layer) {
    expect_refused([&] { optimizer.load(folder() / "adam"); }, "it is of another class");
    EXPECT_EQ(optimizer.load(folder() / "adam", {.strict = false}).optimizer, "torch::optim::Adam");
    EXPECT_TRUE(optimizer.parameter_state(layer.weight).contains("exp_avg"));
  });
  const auto sgd = [](double rate, double momentum) {
    return [=](const Parameters& all) { return SGD(all, SGDOptions(rate).momentum(momentum)); };
  };
  run(sgd(0.25, 0.0),
      [&](DistributedOptimizer& optimizer, Layer&) { optimizer.save(folder() / "sgd"); });
  const std::string rate = "lr of parameter group 0: 0.5, now 0.25";
  run(sgd(0.5, 0.0), [&](DistributedOptimizer& optimizer, Layer&) {
    EXPECT_EQ(optimizer.load(folder() / "sgd").replaced, Names{rate});
  });
  run(sgd(0.5, 0.75), [&](DistributedOptimizer& optimizer, Layer&) {
    expect_refused([&] { optimizer.load(folder() / "sgd"); },
                   "has momentum 0 in parameter group 0, where the program has set 0.75");
    EXPECT_EQ(optimizer.load(folder() / "sgd", {.strict = false}).replaced,
              (Names{rate, "momentum of parameter group 0: 0.75, now 0"}));
  });
}

TEST_P(ChangedProgramsTest, ModesOfTheThread_DoNotReachWhatIsMade) {
  const auto run = [&](bool has_modes, const auto& use) {
    Layer layer(1.0);
    Adam inner({layer.weight}, AdamOptions(0.5));
    std::optional<c10::InferenceMode> mode;
    if (has_modes) mode.emplace();
    DistributedOptimizer optimizer(inner, layer, with(GetParam()));
    use(optimizer, layer, mode);
    return layer.weight.detach().clone();
  };
  using Mode = std::optional<c10::InferenceMode>;
  const at::Tensor expected = run(false, [&](DistributedOptimizer& optimizer, Layer& layer, Mode&) {
    train(optimizer, {layer.weight});
    optimizer.save(folder());
    train(optimizer, {layer.weight});
  });
  const auto resumed = run(true, [&](DistributedOptimizer& optimizer, Layer& layer, Mode& mode) {
    c10::set_default_dtype(c10::scalarTypeToTypeMeta(at::kDouble));
    optimizer.zero_grad();
    optimizer.load(folder());
    c10::set_default_dtype(c10::scalarTypeToTypeMeta(at::kFloat));
    mode.reset();
    train(optimizer, {layer.weight});
  });
  EXPECT_TRUE(torch::equal(resumed, expected));
}

TEST_P(ChangedProgramsTest, WhatAllRanksGiveAlike_IsCompared) {
  if (size() == 1) GTEST_SKIP() << "needs two ranks";
  Growing model(1.0, /*has_grown=*/false);
  SGD inner({model.first->weight}, 0.5);
  DistributedOptimizer optimizer(inner, model, with(GetParam()));
  const auto expect_mismatch = [&](const auto& call, const std::string& text) {
    expect_refused<MismatchError>(call, text);
  };
  expect_mismatch(
      [&] { optimizer.save(folder(), {.extras = {{"epoch", std::to_string(rank())}}}); },
      "extra 'epoch' is 0 on rank 0, and extra 'epoch' is 1 on rank 1");
  GradScaler scaler;
  expect_mismatch([&] { optimizer.save(folder(), {.scaler = is_last() ? &scaler : nullptr}); },
                  "GradScaler is none on rank 0");
  expect_mismatch([&] { optimizer.save_full_state(folder() / "all", is_last() ? 1 : 0); },
                  "root is 0 on rank 0");
  if (is_last()) model.grow(1.0);
  expect_mismatch([&] { optimizer.save(folder()); }, "the number of parameters is 1 on rank 0");
}

}  // namespace kolo::test::changed_programs_test

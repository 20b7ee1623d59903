// Every option of LibTorch's optimizers, in every group: a change on either side applies to both,
// and a checkpoint restores all of them.
#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/error.hpp"
#include "runtime/runtimes.hpp"
#include "train/sharding.hpp"
#include "train/small_training.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test::option_sync_test {

using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamGroup;

/// Two sets of option values that differ in every field.
enum class Set { One, Other };

struct OptionCase {
  const char* name;
  /// Makes an optimizer of two groups: the first group has the options `first`, the second the
  /// other ones.
  std::function<std::unique_ptr<Optimizer>(const Parameters&, Set first)> make;
  std::function<void(OptimizerOptions&, Set)> set;
  std::function<bool(const OptimizerOptions&, Set)> has;
};
void PrintTo(const OptionCase& which, std::ostream* stream) { *stream << which.name; }

template <class Class, class Options>
OptionCase option_case(const char* name, const Options& one, const Options& other) {
  const auto options = [=](Set set) { return set == Set::One ? one : other; };
  return {name,
          [=](const Parameters& parameters, Set first) {
            const Set second = first == Set::One ? Set::Other : Set::One;
            std::vector<OptimizerParamGroup> groups;
            for (const at::Tensor& parameter : parameters)
              groups.emplace_back(Parameters{parameter});
            auto optimizer = std::make_unique<Class>(std::move(groups), one);
            // Newer LibTorch's constructor replaces fields that have the class's default.
            static_cast<Options&>(optimizer->param_groups()[0].options()) = options(first);
            static_cast<Options&>(optimizer->param_groups()[1].options()) = options(second);
            return optimizer;
          },
          [=](OptimizerOptions& of, Set set) { static_cast<Options&>(of) = options(set); },
          [=](const OptimizerOptions& of, Set set) {  // LibTorch's operators compare all fields
            return static_cast<const Options&>(of) == options(set);
          }};
}

template <class Class, class Options>
OptionCase adam_case(const char* name) {
  return option_case<Class>(
      name, Options(0.1).betas({0.8, 0.95}).eps(1e-4).weight_decay(0.01).amsgrad(true),
      Options(0.2).betas({0.7, 0.9}).eps(1e-5).weight_decay(0.02).amsgrad(false));
}

/// Options of a class that LibTorch does not know.
class AnyOptions : public torch::optim::OptimizerCloneableOptions<AnyOptions> {
 public:
  void serialize(torch::serialize::InputArchive& archive) override {
    c10::IValue value;
    archive.read("decay", value);
    decay = value.toDouble();
    archive.read("is_nesterov", value);
    is_nesterov = value.toBool();
    archive.read("window", value);
    window = value.toInt();
    archive.read("betas", value);
    betas = value.to<std::tuple<double, double>>();
    archive.read("milestones", value);
    milestones = value.toDoubleVector();
  }
  void serialize(torch::serialize::OutputArchive& archive) const override {
    archive.write("decay", decay);
    archive.write("is_nesterov", is_nesterov);
    archive.write("window", window);
    archive.write("betas", c10::IValue(betas));
    archive.write("milestones", c10::IValue(milestones));
  }
  bool operator==(const AnyOptions& other) const {
    return decay == other.decay && is_nesterov == other.is_nesterov && window == other.window &&
           betas == other.betas && milestones == other.milestones;
  }
  double decay = 0.5;
  bool is_nesterov = false;
  std::int64_t window = 3;
  std::tuple<double, double> betas{0.75, 0.875};
  std::vector<double> milestones{10.0, 20.0};
};

class AnyOptimizer final : public Optimizer {
 public:
  AnyOptimizer(std::vector<OptimizerParamGroup> groups, const AnyOptions& defaults)
      : Optimizer(groups, std::make_unique<AnyOptions>(defaults)) {}
  at::Tensor step(LossClosure = nullptr) override { return {}; }
};

/// Options without serialize().
class SecretOptions : public torch::optim::OptimizerCloneableOptions<SecretOptions> {};

class SecretOptimizer final : public Optimizer {
 public:
  explicit SecretOptimizer(Parameters parameters)
      : Optimizer(std::move(parameters), std::make_unique<SecretOptions>()) {}
  at::Tensor step(LossClosure = nullptr) override { return {}; }
};

AnyOptions other_options() {
  AnyOptions options;
  options.decay = 0.25;
  options.is_nesterov = true;
  options.window = -7;
  options.betas = {0.0, 1.0};
  options.milestones = {5.0, 15.0};
  return options;
}

std::vector<OptionCase> option_cases() {
  using namespace torch::optim;
  return {
      option_case<SGD>(
          "sgd", SGDOptions(0.1).momentum(0.9).dampening(0.25).weight_decay(0.01).nesterov(false),
          SGDOptions(0.2).momentum(0.8).dampening(0.0).weight_decay(0.02).nesterov(true)),
      adam_case<Adam, AdamOptions>("adam"),
      adam_case<AdamW, AdamWOptions>("adamw"),
      option_case<RMSprop>(
          "rmsprop",
          RMSpropOptions(0.1).alpha(0.9).eps(1e-4).weight_decay(0.01).momentum(0.9).centered(true),
          RMSpropOptions(0.2).alpha(0.8).eps(1e-5).weight_decay(0.02).momentum(0.8).centered(
              false)),
      option_case<Adagrad>(
          "adagrad",
          AdagradOptions(0.1).initial_accumulator_value(0.5).lr_decay(0.01).weight_decay(0.01).eps(
              1e-4),
          AdagradOptions(0.2).initial_accumulator_value(0.2).lr_decay(0.02).weight_decay(0.02).eps(
              1e-5)),
      option_case<AnyOptimizer>("own", AnyOptions(), other_options()),
  };
}

class OptionSyncTest : public TrainingTest, public testing::WithParamInterface<OptionCase> {
 protected:
  /// Two parameters without gradients, which steps leave alone.
  struct Wrapped {
    Wrapped(const OptionCase& which, Set first)
        : inner(which.make(parameters, first)),
          optimizer(*inner, {{"first", parameters[0]}, {"second", parameters[1]}}) {}

    Parameters parameters{torch::ones({2}).requires_grad_(), torch::ones({3}).requires_grad_()};
    std::unique_ptr<Optimizer> inner;
    DistributedOptimizer optimizer;
  };

  static void expect_options(Optimizer& of, Set first, Set second, const char* side) {
    EXPECT_TRUE(GetParam().has(of.param_groups()[0].options(), first)) << side << ", first group";
    EXPECT_TRUE(GetParam().has(of.param_groups()[1].options(), second)) << side << ", second group";
  }
};

INSTANTIATE_TEST_SUITE_P(Optimizers, OptionSyncTest, testing::ValuesIn(option_cases()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(OptionSyncTest, EveryOption_IsSetOnEitherSide) {
  Wrapped training(GetParam(), Set::One);
  expect_options(training.optimizer, Set::One, Set::Other, "wrapper at first");
  GetParam().set(training.optimizer.param_groups()[0].options(), Set::Other);
  training.optimizer.step();
  expect_options(*training.inner, Set::Other, Set::Other, "wrapped");
  GetParam().set(training.inner->param_groups()[1].options(), Set::One);
  training.optimizer.step();
  expect_options(training.optimizer, Set::Other, Set::One, "wrapper");
  expect_options(*training.inner, Set::Other, Set::One, "wrapped, as it was set");
}

TEST_P(OptionSyncTest, EveryOption_IsRestoredFromCheckpoints) {
  const CommonFolder folder;
  Wrapped(GetParam(), Set::One).optimizer.save(folder.path());
  Wrapped after(GetParam(), Set::Other);
  after.optimizer.load(folder.path(), {.strict = false});  // which may switch off what is on
  expect_options(*after.inner, Set::One, Set::Other, "wrapped");
  expect_options(after.optimizer, Set::One, Set::Other, "wrapper");
}

class RefusedOptionsTest : public ShardedOptimizerTest {};

TEST_F(RefusedOptionsTest, ListsOfAnotherLength_AreRefusedUntilBothHaveIt) {
  Parameters parameters{torch::ones({2}).requires_grad_()};
  AnyOptimizer inner({OptimizerParamGroup(parameters)}, AnyOptions());
  DistributedOptimizer optimizer(inner, {{"first", parameters[0]}});
  const auto milestones_of = [](Optimizer& side) -> std::vector<double>& {
    return static_cast<AnyOptions&>(side.param_groups()[0].options()).milestones;
  };
  for (const std::vector<double>& other : {std::vector{1.0}, std::vector{1.0, 2.0, 3.0}}) {
    for (Optimizer* const side : std::vector<Optimizer*>{&optimizer, &inner}) {
      const std::vector<double> before = milestones_of(*side);
      milestones_of(*side) = other;
      expect_refused([&] { optimizer.step(); }, " values of option milestones on it and ");
      milestones_of(*side) = before;
    }
    milestones_of(optimizer) = milestones_of(inner) = other;
    optimizer.step();
    milestones_of(inner)[0] = 7.0;
    optimizer.step();
    EXPECT_EQ(milestones_of(optimizer)[0], 7.0);
  }
}

TEST_F(RefusedOptionsTest, OptionsThatCannotBeFollowed_AreRefused) {
  const at::Tensor parameter = torch::ones({2}).requires_grad_();
  SecretOptimizer inner({parameter});
  const std::string text = text_thrown_by<InvalidArgument>(
      [&] { DistributedOptimizer(inner, {{"parameter", parameter}}); });
  expect_contains(text, "SecretOptions cannot be read and written");
  expect_contains(text, "Implement serialize() for both archives");
}

}  // namespace kolo::test::option_sync_test

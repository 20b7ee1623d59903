// Shard::Full where parameters are gathered on use and some are frozen, as in fine-tuning with
// low-rank adapters (LoRA).
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/torch/deferred.hpp"
#include "kolo/torch/filters.hpp"
#include "support/mpi/variants.hpp"
#include "train/adapted_layers.hpp"
#include "train/layer_units.hpp"
#include "train/sharding.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test::gathered_frozen_test {

/// Counts the units of float32 parameters that have memory, at the beginning and end of every
/// operator, and fills memory that a unit has lost with NaN. Only one instance may exist at a time.
class MemoryWatch {
 public:
  using Unit = std::vector<at::Tensor>;

  explicit MemoryWatch(std::vector<Unit> units) : units_(std::move(units)) {
    current = this;
    callback_ = at::addGlobalCallback(at::RecordFunctionCallback(
        [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> {
          if (current != nullptr) current->look();
          return nullptr;
        },
        [](const at::RecordFunction&, at::ObserverContext*) {
          if (current != nullptr) current->look();
        }));
  }
  ~MemoryWatch() {
    current = nullptr;
    at::removeCallback(callback_);
  }
  MemoryWatch(const MemoryWatch&) = delete;  // registers a callback of LibTorch
  MemoryWatch& operator=(const MemoryWatch&) = delete;

  std::size_t max_units = 0;
  std::size_t poisoned = 0;

 private:
  using Memory = std::map<std::byte*, std::size_t>;  // bytes by address

  /// Whether another unit has been gathered into this memory.
  static bool overlaps(const Memory& memory, const std::byte* begin, std::size_t bytes) {
    return std::ranges::any_of(memory, [&](const auto& range) {
      return range.first < begin + bytes && begin < range.first + range.second;
    });
  }
  void look() {
    std::size_t units = 0;
    Memory memory;
    for (const Unit& unit : units_) {
      bool is_there = false;
      for (const at::Tensor& parameter : unit) {
        if (!layer_units::is_in_memory(parameter)) continue;
        is_there = true;
        memory[static_cast<std::byte*>(parameter.data_ptr())] = parameter.nbytes();
      }
      if (is_there) ++units;
    }
    max_units = std::max(max_units, units);
    for (const auto& [address, bytes] : known_) {
      if (overlaps(memory, address, bytes)) continue;
      std::fill_n(reinterpret_cast<float*>(address), bytes / sizeof(float),
                  std::numeric_limits<float>::quiet_NaN());
      ++poisoned;
    }
    known_ = memory;
  }

  static inline MemoryWatch* current = nullptr;
  std::vector<Unit> units_;
  at::CallbackHandle callback_ = 0;
  Memory known_;
};

const AlsoIn also_in({"messages", "nodes"});

using namespace adapted_layers;
using layer_units::input;
using layer_units::is_in_memory;

using torch::optim::AdamW;
using torch::optim::AdamWOptions;

class GatheredFrozenTest : public AdaptedLayersTest {};

TEST_F(GatheredFrozenTest, FrozenParameters_HaveMemoryOnlyWhileTheyAreUsed) {
  if (!gathers_on_use()) GTEST_SKIP() << kNothingGathered;
  AdaptedLayers model;
  const AdaptedLayers expected;
  torch::optim::SGD inner(model->parameters(), 0.1);
  DistributedOptimizer optimizer(inner, *model, layer_by_layer(Shard::Full));
  for (const at::Tensor& parameter : model->parameters()) EXPECT_FALSE(is_in_memory(parameter));
  model->layers[2]->up.detach().sum();  // gathers its layer
  EXPECT_TRUE(is_in_memory(model->layers[2]->base->weight));
  EXPECT_TRUE(is_in_memory(model->layers[2]->base->bias));
  EXPECT_FALSE(is_in_memory(model->layers[1]->base->weight));
  EXPECT_TRUE(torch::equal(model->layers[2]->base->weight, expected->layers[2]->base->weight));
  step(model, optimizer, 0);
  for (const at::Tensor& parameter : model->parameters()) EXPECT_FALSE(is_in_memory(parameter));
}

TEST_F(GatheredFrozenTest, UnitsOfAPolicy_HaveFrozenParameters) {
  if (!gathers_on_use()) GTEST_SKIP() << kNothingGathered;
  AdaptedLayers model;
  std::vector<at::Tensor> adapters;  // the optimizer does not know the other parameters
  for (const at::Tensor& parameter : model->parameters()) {
    if (parameter.requires_grad()) adapters.push_back(parameter);
  }
  torch::optim::SGD inner(adapters, 0.1);
  Options options = layer_by_layer(Shard::Full);
  options.bucket_bytes = 8;
  options.unit_policy = modules_of<Adapted>();
  const DistributedOptimizer optimizer(inner, *model, options);
  model->layers[2]->up.detach().sum();
  EXPECT_TRUE(is_in_memory(model->layers[2]->down));
  EXPECT_TRUE(is_in_memory(model->layers[2]->base->weight));
  EXPECT_FALSE(is_in_memory(model->layers[3]->base->weight));
}

TEST_F(GatheredFrozenTest, AtMostTwoUnits_HaveMemoryAtAnyOperator) {
  if (!gathers_on_use()) GTEST_SKIP() << kNothingGathered;
  std::optional<MemoryWatch> watch;
  const at::Tensor whole = train(layer_by_layer(Shard::None));
  // Each step begins with another layer, so that no unit is prefetched into poisoned memory.
  const auto full = train(layer_by_layer(Shard::Full),
                          [&](AdaptedLayers& model, DistributedOptimizer&, int number) {
                            if (!watch) watch.emplace(layer_units::units_of(*model));
                            model->layers[static_cast<std::size_t>(number)]->base->weight.sum();
                          });
  EXPECT_EQ(watch->max_units, 2U);
  EXPECT_GT(watch->poisoned, 10U);
  expect_alike(full, whole);
}

/// Counts the bytes that LibTorch's CPU allocator holds for this thread.
class LiveBytes final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, std::int64_t bytes, std::size_t, std::size_t,
                         c10::Device) override {
    live += bytes;
  }
  bool memoryProfilingEnabled() const override { return true; }

  std::int64_t live = 0;
};

TEST_F(GatheredFrozenTest, EachRank_KeepsItsShareOfFrozenParameters) {
  if (!gathers_on_use()) GTEST_SKIP() << kNothingGathered;
  constexpr std::int64_t kWide = 256;
  constexpr std::int64_t kUnit = (kWide * (kWide + 1) + 2 * kRank * kWide) * 4;
  const auto counted = std::make_shared<LiveBytes>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, counted);
  AdaptedLayers model(kWide);
  EXPECT_GE(counted->live, static_cast<std::int64_t>(kLayers) * kUnit);
  torch::optim::SGD inner(model->parameters(), 0.1);
  Options options = layer_by_layer(Shard::Full);
  options.bucket_bytes = kUnit;
  DistributedOptimizer optimizer(inner, *model, options);
  const std::int64_t slots = share_gathered_units() ? 0 : 2 * kUnit;  // shared ones lie elsewhere
  const std::int64_t adapters = std::int64_t{kLayers} * 2 * kRank * kWide * 4;
  const std::int64_t gradients = 2 * adapters;  // in shards and in slots
  const std::int64_t padding = 65536;
  EXPECT_LE(counted->live, std::int64_t{kLayers} * kUnit / size() + slots + gradients + padding);
}

TEST_F(GatheredFrozenTest, BytesSent_IncludeThoseOfFrozenParameters) {
  if (!gathers_on_use()) GTEST_SKIP() << kNothingGathered;
  AdaptedLayers model(200);
  torch::optim::SGD inner(model->parameters(), 0.01);
  DistributedOptimizer optimizer(inner, *model, {.shard = Shard::Full});
  for (int number = 0; number < 3; ++number) {
    optimizer.zero_grad();
    model->forward(torch::ones({2, 200}) * rank()).sum().backward();
    optimizer.step();
  }
  const TrainingReport report = optimizer.report();
  const double ratio = static_cast<double>(report.sent_per_step) /
                       static_cast<double>(report.expected_sent_per_step);
  EXPECT_LE(ratio, 1.02);
  EXPECT_GT(ratio, 0.7);  // some units are in memory when backward() begins
}

TEST_F(GatheredFrozenTest, ModelWithoutTrainedParameters_TrainsOnceTheyAreUnfrozen) {
  const auto train_later = [&](Shard shard) {
    AdaptedLayers model;
    for (at::Tensor& parameter : model->parameters()) parameter.set_requires_grad(false);
    AdamW inner(model->parameters(), AdamWOptions(1e-2).eps(1e-4));
    DistributedOptimizer optimizer(inner, *model, layer_by_layer(shard));
    model->forward(input(rank(), 0));
    optimizer.step();
    for (at::Tensor& parameter : model->layers[2]->parameters()) parameter.set_requires_grad(true);
    for (int number = 0; number < 3; ++number) step(model, optimizer, number);
    return values_of(*model);
  };
  expect_alike(train_later(Shard::Full), train_later(Shard::None));
}

TEST_F(GatheredFrozenTest, AnotherMode_MakesFrozenParametersWhole) {
  AdaptedLayers model;
  const at::Tensor values = values_of(*model);
  torch::optim::SGD inner(model->parameters(), 0.1);
  {
    const DistributedOptimizer first(inner, *model, layer_by_layer(Shard::Full));
  }
  EXPECT_TRUE(torch::equal(values_of(*model), values));  // parameters outlive the optimizer
  const DistributedOptimizer second(inner, *model, layer_by_layer(Shard::None));
  for (const at::Tensor& parameter : model->parameters()) EXPECT_TRUE(is_in_memory(parameter));
  std::stringstream file;
  torch::save(model, file);
  AdaptedLayers loaded;
  for (at::Tensor& parameter : loaded->parameters()) parameter.data().zero_();
  torch::load(loaded, file);
  EXPECT_TRUE(torch::equal(values_of(*loaded), values));
}

TEST_F(GatheredFrozenTest, EmptyParameterOfAnEndedOptimizer_IsReadByOneRankAlone) {
  const at::Tensor weight = torch::ones({301}).requires_grad_();
  const at::Tensor empty = torch::empty({0}).requires_grad_();
  const DistributedOptimizer::NamedParameters names{{"weight", weight}, {"empty", empty}};
  torch::optim::SGD all({weight, empty}, 0.1);
  {
    const DistributedOptimizer first(all, names, {.shard = Shard::Full});
  }
  empty.set_requires_grad(false);
  torch::optim::SGD inner({weight}, 0.1);
  const DistributedOptimizer second(inner, names, {.shard = Shard::Full});
  if (rank() == 0) {
    EXPECT_EQ(empty.sum().item<float>(), 0);
  }
}

TEST_F(GatheredFrozenTest, DeferredModels_HaveTheValuesOfOrdinaryOnes) {
  if (Config::from_environment().fake_nodes > 0) GTEST_SKIP() << "two ranks are first of a node";
  auto model = deferred<AdaptedLayersImpl>(std::int64_t{kWidth});
  torch::optim::SGD inner(model->parameters(), 0.1);
  DistributedOptimizer optimizer(inner, *model, layer_by_layer(Shard::Full));
  EXPECT_TRUE(torch::equal(values_of(*model), values_of(*AdaptedLayers())));
}

TEST_F(GatheredFrozenTest, TypesMayDiffer) {
  at::Tensor weight = torch::ones({301}, torch::kDouble).requires_grad_();
  const at::Tensor values = torch::arange(301).remainder(101).to(torch::kChar);
  const at::Tensor codes = values.clone();
  const at::Tensor scales = torch::full({7}, 0.5, torch::kBFloat16);
  torch::optim::SGD inner({weight}, 1.0);
  DistributedOptimizer optimizer(inner, {{"codes", codes}, {"weight", weight}, {"scales", scales}},
                                 {.shard = Shard::Full});
  (weight * codes * scales[5] * (rank() + 1)).sum().backward();
  optimizer.step();
  const double mean = 0.5 * (size() + 1);
  EXPECT_TRUE(torch::equal(weight.detach(), 1 - mean * 0.5 * values.to(torch::kDouble)));
  EXPECT_TRUE(torch::equal(codes, values));
  EXPECT_TRUE(torch::equal(scales, torch::full({7}, 0.5, torch::kBFloat16)));
}

}  // namespace kolo::test::gathered_frozen_test

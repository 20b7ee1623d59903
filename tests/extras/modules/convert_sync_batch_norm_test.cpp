// Replacing BatchNorm in a model, and the alternative, averaging its running statistics.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "extras/modules/joined_batches.hpp"
#include "kolo/extras/sync_batch_norm.hpp"

namespace kolo::test::convert_sync_batch_norm_test {

using namespace torch::nn;
using Names = std::vector<std::string>;

/// A module that contains a Sequential, and that a Sequential can call.
class BlockImpl : public Module {
 public:
  BlockImpl() {
    layers = register_module("layers", Sequential(Linear(3, 3), BatchNorm1d(3), ReLU()));
  }
  at::Tensor forward(const at::Tensor& x) { return layers->forward(x); }
  Sequential layers;
};
TORCH_MODULE(Block);

/// A module that calls BatchNorm through its concrete type.
class TypedImpl : public Module {
 public:
  TypedImpl() { norm = register_module("norm", BatchNorm1d(3)); }
  at::Tensor forward(const at::Tensor& x) { return norm->forward(x); }
  BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Typed);

/// The program's own subclass of BatchNorm.
class ScaledNormImpl : public BatchNorm1dImpl {
 public:
  using BatchNorm1dImpl::BatchNorm1dImpl;
  at::Tensor forward(const at::Tensor& x) { return BatchNorm1dImpl::forward(x) * 2; }
};

class ConvertSyncBatchNormTest : public TrainingTest {
 protected:
  void expect_not_convertible(Module& model, const Names& parts) {
    const std::string text =
        text_thrown_by<InvalidArgument>([&] { convert_sync_batch_norm(model); });
    for (const std::string& part : parts) expect_contains(text, part);
    for (const auto& found : model.modules(false)) {
      EXPECT_EQ(found->as<SyncBatchNorm>(), nullptr);  // none has been replaced
    }
  }
};

TEST_F(ConvertSyncBatchNormTest, WhatSequentialsCall_IsReplaced) {
  Sequential model(Linear(3, 3), BatchNorm1d(3), Block(), Block());
  const std::vector<at::Tensor> parameters = model->parameters();
  const Names names = model->named_parameters().keys();
  const Names buffers = model->named_buffers().keys();
  model[1]->as<BatchNorm1d>()->running_mean.fill_(4);
  EXPECT_EQ(convert_sync_batch_norm(*model), (Names{"1", "2.layers.1", "3.layers.1"}));
  EXPECT_NE(model[1]->as<SyncBatchNorm>(), nullptr);
  EXPECT_NE(model[3]->as<Block>()->layers[1]->as<SyncBatchNorm>(), nullptr);
  EXPECT_EQ(model->named_parameters().keys(), names);
  EXPECT_EQ(model->named_buffers().keys(), buffers);
  const std::vector<at::Tensor> after = model->parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) EXPECT_TRUE(after[i].is_same(parameters[i]));
  EXPECT_EQ(model[1]->as<SyncBatchNorm>()->running_mean[0].item<float>(), 4.0F);

  const JoinedBatch batch(runtime_.world(), Rows::Uneven);
  torch::manual_seed(1);
  for (const at::Tensor& parameter : parameters) torch::nn::init::normal_(parameter);
  Sequential whole(Linear(3, 3), BatchNorm1d(3), Block(), Block());
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    whole->parameters()[i].copy_(parameters[i]);
  }
  const at::Tensor all = random_batch(batch.count(), {3}, 2);
  expect_close(model->forward(batch.own(all)), batch.own(whole->forward(all)), 1e-5, "output");
  EXPECT_TRUE(convert_sync_batch_norm(*model).empty());  // none left to replace
}

TEST_F(ConvertSyncBatchNormTest, OptionsAndMode_AreTakenOver) {
  Sequential model(BatchNorm2d(BatchNormOptions(2).eps(0.5).momentum(std::nullopt)),
                   BatchNorm3d(BatchNormOptions(2).affine(false).track_running_stats(false)));
  model->eval();
  model->to(at::kDouble);
  convert_sync_batch_norm(*model);
  const auto* const first = model[0]->as<SyncBatchNorm>();
  EXPECT_EQ(first->options.eps(), 0.5);
  EXPECT_FALSE(first->options.momentum().has_value());
  EXPECT_FALSE(first->is_training());
  EXPECT_EQ(first->running_var.scalar_type(), at::kDouble);
  EXPECT_FALSE(model[1]->as<SyncBatchNorm>()->weight.defined());
  EXPECT_FALSE(model[1]->as<SyncBatchNorm>()->running_mean.defined());
}

TEST_F(ConvertSyncBatchNormTest, SharedModules_StayShared) {
  Sequential model;
  {
    const auto norm = std::make_shared<BatchNorm1dImpl>(3);
    model->push_back(norm);
    model->push_back("again", norm);
  }
  EXPECT_EQ(convert_sync_batch_norm(*model), (Names{"0", "again"}));
  EXPECT_EQ(model[0], model[1]);
  EXPECT_NE(model[0]->as<SyncBatchNorm>(), nullptr);
}

TEST_F(ConvertSyncBatchNormTest, ModulesThatCodeCallsByType_AreRefusedByName) {
  Sequential nested(BatchNorm1d(3), Typed());
  expect_not_convertible(*nested, {"'1.norm'", "TypedImpl calls it by its own type",
                                   "kolo::SyncBatchNorm", "sync_running_statistics"});
  const auto both = std::make_shared<Module>();
  both->register_module("layers", Sequential(BatchNorm1d(3), Linear(3, 3)));
  both->register_module("norm", both->children()[0]->children()[0]);
  expect_not_convertible(*both, {"'norm': the code of"});
  ModuleList list(BatchNorm1d(3));
  expect_not_convertible(*list, {"'0': the code of torch::nn::ModuleListImpl"});
  BatchNorm1d alone(3);
  expect_not_convertible(*alone, {"the model itself is a BatchNorm"});
  Sequential own(std::make_shared<ScaledNormImpl>(3));
  expect_not_convertible(*own, {"'0': it is a ", "ScaledNormImpl, whose forward() would be lost"});
  Sequential held(BatchNorm1d(3));
  {
    const std::shared_ptr<Module> variable = held[0];
    expect_not_convertible(*held, {"'0': something else holds it too"});
  }
  EXPECT_EQ(convert_sync_batch_norm(*held), Names{"0"});
}

TEST_F(ConvertSyncBatchNormTest, OneModule_CanBeReplacedByItsOwner) {
  BatchNorm2d norm(BatchNormOptions(3).eps(0.25));
  norm->running_mean.fill_(2);
  SyncBatchNorm synced(*norm);
  EXPECT_TRUE(synced->weight.is_same(norm->weight));
  EXPECT_EQ(synced->running_mean.data_ptr(), norm->running_mean.data_ptr());
  EXPECT_EQ(synced->options.eps(), 0.25);
}

/// BatchNorm with closed-form statistics that differ between ranks.
class RunningStatisticsTest : public TrainingTest {
 protected:
  Sequential model_of(int rank) const {
    Sequential model(BatchNorm1d(2), Typed(),
                     BatchNorm1d(BatchNormOptions(3).track_running_stats(false)));
    auto& first = *model[0]->as<BatchNorm1d>();
    first.running_mean.copy_(torch::tensor({1.0F * static_cast<float>(rank), -2.0F}));
    first.running_var.copy_(torch::tensor({2.0F, 1.0F + static_cast<float>(rank)}));
    first.num_batches_tracked.fill_(rank + 1);
    return model;
  }
};

TEST_F(RunningStatisticsTest, CombinedOnes_AreThoseOfAllBatches) {
  Sequential model = model_of(rank());
  sync_running_statistics(*model);
  double weights = 0, mean = 0, variance = 0, square = 0;
  for (int other = 0; other < size(); ++other) {
    weights += other + 1;
    mean += (other + 1) * other;
    square += (other + 1) * other * other;
    variance += (other + 1) * (1 + other);
  }
  mean /= weights;
  const auto& first = *model[0]->as<BatchNorm1d>();
  expect_close(first.running_mean, torch::tensor({mean, -2.0}).to(at::kFloat), 1e-6, "mean");
  const at::Tensor expected =
      torch::tensor({2.0 + square / weights - mean * mean, variance / weights}).to(at::kFloat);
  expect_close(first.running_var, expected, 1e-6, "variance");
  EXPECT_EQ(first.num_batches_tracked.item<int>(), size());
  const auto& untouched = *model[1]->as<Typed>()->norm;  // no rank has seen a batch
  EXPECT_TRUE(at::equal(untouched.running_mean, at::zeros({3})));
  EXPECT_TRUE(at::equal(untouched.running_var, at::ones({3})));
}

TEST_F(RunningStatisticsTest, CumulativeAveragesOfEqualShares_AreThoseOfOneProcess) {
  const BatchNormOptions options = BatchNormOptions(2).momentum(std::nullopt);
  BatchNorm1d whole(options);
  std::vector<BatchNorm1d> of_ranks;
  for (int each = 0; each < size(); ++each) of_ranks.emplace_back(options);
  for (int step = 0; step < 6; ++step) {
    for (int each = 0; each < size(); ++each) {
      const at::Tensor batch = random_batch(50, {2}, step * size() + each) + each;
      whole->forward(batch);
      of_ranks[static_cast<std::size_t>(each)]->forward(batch);
    }
  }
  std::vector<at::Tensor> means;
  for (const BatchNorm1d& each : of_ranks) means.push_back(each->running_mean.clone());
  BatchNorm1d own = of_ranks[static_cast<std::size_t>(rank())];
  sync_running_statistics(*own);
  expect_close(own->running_mean, whole->running_mean, 1e-6, "mean");
  // The batches of one rank have a mean of their own, from which the others' differ.
  const at::Tensor between = at::stack(means).var(0, /*unbiased=*/false);
  expect_close(own->running_var, whole->running_var + between, 1e-6, "variance");
  EXPECT_EQ(own->num_batches_tracked.item<int>(), 6);
}

TEST_F(RunningStatisticsTest, OneRanksStatistics_CanBeGivenToAll) {
  Sequential model = model_of(rank());
  sync_running_statistics(*model, {.root = size() - 1});
  const Sequential expected = model_of(size() - 1);
  const auto buffers = expected->named_buffers();
  for (const auto& item : model->named_buffers()) {
    if (item.value().defined()) expect_equal(item.value(), buffers[item.key()], item.key());
  }
}

TEST_F(RunningStatisticsTest, ProcessSets_CombineTheirOwn) {
  if (size() < 3) GTEST_SKIP() << "the set needs two ranks";
  ProcessSet& set = runtime_.add_process_set({0, size() - 1});
  Sequential model = model_of(rank());
  const double before = model[0]->as<BatchNorm1d>()->running_mean[0].item<double>();
  if (set.included()) sync_running_statistics(*model, {.process_set = &set});
  const double last = size() - 1;
  const double expected = set.included() ? (last + 1) * last / (last + 2) : before;
  EXPECT_NEAR(model[0]->as<BatchNorm1d>()->running_mean[0].item<double>(), expected, 1e-5);
}

TEST_F(RunningStatisticsTest, DifferentModels_AreAMismatch) {
  if (size() == 1) GTEST_SKIP() << "one rank agrees with itself";
  Sequential model = model_of(rank());
  if (is_last()) model->push_back(BatchNorm1d(2));
  expect_refused<MismatchError>([&] { sync_running_statistics(*model); },
                                "the list of modules with running statistics is '0', '1.norm' on");
  Sequential wider(BatchNorm1d(is_last() ? 3 : 2));
  expect_refused<MismatchError>([&] { sync_running_statistics(*wider); }, "shape");
  Sequential same = model_of(rank());
  expect_refused<MismatchError>(
      [&] { sync_running_statistics(*same, {.root = is_last() ? 1 : 0}); }, "the root is 0 on");
}

}  // namespace kolo::test::convert_sync_batch_norm_test

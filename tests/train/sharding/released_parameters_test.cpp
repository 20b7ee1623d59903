// Released parameters: any access other than by operators gets the right values, or an exception
// that says what to call.
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string>

#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/torch/tensor_collectives.hpp"
#include "support/mpi/variants.hpp"
#include "train/layer_units.hpp"
#include "train/sharding.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test::released_parameters_test {

const AlsoIn also_in({"messages", "nodes"});

using namespace layer_units;

/// A model whose parameters are all sharded, and their full values.
class ReleasedParametersTest : public TrainingTest {
 protected:
  void SetUp() override {
    if (!gathers_on_use()) GTEST_SKIP() << kNothingGathered;
    whole_ = Layers();
    model_ = Layers();
    inner_ = std::make_unique<torch::optim::SGD>(model_->parameters(), 0.1);
    optimizer_.emplace(*inner_, *model_, layer_by_layer(Shard::Full));
  }

  /// `access` throws without waiting for other ranks, and the model can still be trained.
  void expect_refused_access(const std::function<void()>& access) {
    if (is_last()) {
      const std::string text = text_thrown_by<c10::Error>(access);
      expect_contains(text, "a parameter of the unit of 'layer1' is not in memory on this rank");
      expect_contains(text, "full_parameters()");
      expect_contains(text, "save_full_state()");
    }
    model_->forward(input(rank(), 0), ascending()).sum().backward();
    optimizer_->step();
  }
  at::Tensor released() const { return model_->layers[1]->weight; }
  at::Tensor expected() const { return whole_->layers[1]->weight; }
  void expect_all(Layers& model, at::ScalarType type = at::kFloat) const {
    const auto got = model->parameters(), wanted = whole_->parameters();
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(torch::equal(got[i], wanted[i].to(type))) << i;
    }
  }

  Layers whole_ = nullptr;
  Layers model_ = nullptr;
  std::unique_ptr<torch::optim::SGD> inner_;
  std::optional<DistributedOptimizer> optimizer_;
};

TEST_F(ReleasedParametersTest, SavingTheModel_IsRefused) {
  model_->layers[0]->weight.detach().sum();  // the first layer could be written
  std::stringstream file;
  expect_refused_access([&] { torch::save(model_, file); });
}

TEST_F(ReleasedParametersTest, SavingAParameter_IsRefused) {
  std::stringstream file;
  expect_refused_access([&] { torch::save(released(), file); });
}

TEST_F(ReleasedParametersTest, SavingWithinFullParameters_WritesAllValues) {
  std::stringstream file;
  optimizer_->full_parameters([&] { torch::save(model_, file); });
  EXPECT_FALSE(is_in_memory(released()));
  Layers loaded;
  for (at::Tensor& parameter : loaded->parameters()) parameter.data().zero_();
  torch::load(loaded, file);
  expect_all(loaded);
  expect_refused_access([&] { torch::save(released(), file); });
}

TEST_F(ReleasedParametersTest, SavingAGatheredParameter_WritesItsValues) {
  released().detach().sum();
  std::stringstream file;
  torch::save(released(), file);
  at::Tensor loaded;
  torch::load(loaded, file);
  EXPECT_TRUE(torch::equal(loaded, expected()));
}

TEST_F(ReleasedParametersTest, AddressesAreRefused) {
  expect_refused_access([&] { released().data_ptr<float>(); });
  expect_refused_access([&] { released().const_data_ptr(); });
  expect_refused_access([&] {
    const at::Tensor weight = released();
    weight.accessor<float, 2>();
  });
  expect_refused_access([&] { released().data().mutable_data_ptr<float>(); });
  expect_refused_access([&] { released().storage().data(); });
}

// The last rank submits after the others' memory of the parameter has been reused for other units.
TEST_F(ReleasedParametersTest, CollectivesTakeTheirValues) {
  TensorHandle handle;
  if (is_last()) {
    released().detach().sum();
  } else {
    handle = allreduce_async(released(), {.op = ReduceOp::Max});
  }
  model_->forward(input(rank(), 0), ascending());
  if (is_last()) handle = allreduce_async(expected(), {.op = ReduceOp::Max});
  EXPECT_TRUE(torch::equal(handle.result(), expected()));
}

TEST_F(ReleasedParametersTest, OperatorsThatNobodyWatches_AreRefused) {
  expect_refused_access([&] {
    const at::DisableRecordFunctionGuard unwatched;
    released().detach().sum();
  });
}

TEST_F(ReleasedParametersTest, PropertiesNeedNoElements) {
  const at::Tensor weight = released();
  EXPECT_EQ(weight.sizes(), expected().sizes());
  EXPECT_TRUE(weight.is_cpu() && !weight.is_meta() && weight.is_contiguous());
  EXPECT_TRUE(weight.is_leaf() && weight.requires_grad());
  EXPECT_EQ(weight.storage().nbytes(), weight.nbytes());
  EXPECT_EQ(weight.storage().device(), at::Device(at::kCPU));
  EXPECT_FALSE(is_in_memory(weight));
}

TEST_F(ReleasedParametersTest, ElementsAndTextsAreThoseOfTheWhole) {
  EXPECT_EQ(released()[3][5].item<float>(), expected()[3][5].item<float>());
  model_->forward(input(0, 0), ascending());  // releases it
  EXPECT_FALSE(is_in_memory(released()));
  std::ostringstream text, expected_text;
  text << released().detach();
  expected_text << expected().detach();
  EXPECT_EQ(text.str(), expected_text.str());
}

TEST_F(ReleasedParametersTest, InferenceGathersThem) {
  const c10::InferenceMode inference;
  EXPECT_TRUE(torch::equal(model_->forward(input(0, 0), ascending()),
                           whole_->forward(input(0, 0), ascending())));
}

TEST_F(ReleasedParametersTest, AClone_IsWholeAndItsOwn) {
  torch::nn::Sequential model;
  for (std::size_t i = 0; i < kLayers; ++i) model->push_back(torch::nn::Linear(kWidth, kWidth));
  const at::Tensor values = flat(*model);
  torch::optim::SGD inner(model->parameters(), 0.1);
  DistributedOptimizer optimizer(inner, *model, layer_by_layer(Shard::Full));
  const auto clone = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(model->clone());
  for (const at::Tensor& parameter : clone->parameters()) EXPECT_TRUE(is_in_memory(parameter));
  EXPECT_TRUE(torch::equal(flat(*clone), values));
}

TEST_F(ReleasedParametersTest, AConvertedModel_HasAllValuesAndIsNoLongerTrained) {
  model_->to(torch::kDouble);
  expect_all(model_, at::kDouble);
  expect_contains(text_thrown_by<InvalidArgument>([&] { optimizer_->step(); }),
                  "has another dtype");
}

TEST_F(ReleasedParametersTest, OfAnEndedModel_LeaveNoMemoryToTheNext) {
  const auto storage = released().storage().getWeakStorageImpl();
  optimizer_.reset();
  inner_.reset();
  EXPECT_TRUE(torch::equal(released(), expected()));  // parameters outlive the optimizer
  model_ = nullptr;
  torch::optim::SGD inner(whole_->parameters(), 0.1);
  const DistributedOptimizer optimizer(inner, *whole_, layer_by_layer(Shard::Full));
  EXPECT_TRUE(storage.expired());
}

}  // namespace kolo::test::released_parameters_test

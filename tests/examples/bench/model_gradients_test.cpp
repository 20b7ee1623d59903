#include "bench/model_gradients.hpp"

#include <numeric>

#include <gtest/gtest.h>

namespace model_gradients_test {

// As torchvision and Transformers count them.
TEST(ModelGradients, TotalsAreThoseOfTheModels) {
  struct Case {
    const char* model;
    std::size_t tensors, elements;
  };
  for (const Case tested : {Case{"resnet50", 161, 25'557'032}, Case{"bert_base", 199, 109'482'240},
                            Case{"gpt2_small", 148, 124'439'808}}) {
    const auto counts = bench::gradient_counts(tested.model);
    EXPECT_EQ(counts.size(), tested.tensors) << tested.model;
    EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), std::size_t{0}), tested.elements)
        << tested.model;
  }
}

TEST(ModelGradients, LastLayerComesFirst) {
  const auto resnet = bench::gradient_counts("resnet50");
  EXPECT_EQ(resnet.front(), 1000U);
  EXPECT_EQ(resnet[1], 2048U * 1000);
  EXPECT_EQ(resnet.back(), 3U * 64 * 7 * 7);
  EXPECT_EQ(bench::gradient_counts("bert_base").back(), 30522U * 768);
  EXPECT_EQ(bench::gradient_counts("gpt2_small").back(), 50257U * 768);
}

TEST(ModelGradients, EveryNameHasAModel) {
  for (const std::string& name : bench::model_names()) {
    EXPECT_FALSE(bench::gradient_counts(name).empty()) << name;
  }
}

}  // namespace model_gradients_test

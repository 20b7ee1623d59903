// Shard::Full with frozen parameters: one copy of them per node, or shards that are gathered on
// use; and what programs may do with them.
#include <cstdint>
#include <string>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "kolo/torch/parameter_sync.hpp"
#include "support/mpi/variants.hpp"
#include "train/sharding.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test::frozen_parameters_test {

const AlsoIn also_in({"uneven", "nodes"});

constexpr std::int64_t kElements = 3001;  // two pages and a part of one

using Names = DistributedOptimizer::NamedParameters;

at::Tensor filled(double value, at::ScalarType type = at::kDouble) {
  return torch::full({kElements}, value, type);
}

class FrozenParametersTest : public TrainingTest {
 protected:
  bool shares_memory() const { return Config::from_environment().shared_memory || size() == 1; }
  int first_of_node() const { return rank() - runtime_.local_rank(); }
  /// Whether all ranks of the node see what its first rank writes to the tensor.
  bool is_one_copy(const at::Tensor& tensor) {
    auto* const data = static_cast<char*>(tensor.data_ptr()) + tensor.nbytes() - 1;
    const char before = *data;
    const char written = static_cast<char>(before + 1);
    barrier();
    if (runtime_.local_rank() == 0) *data = written;
    barrier();
    const bool is_seen = *data == written;
    barrier();
    if (runtime_.local_rank() == 0) *data = before;
    barrier();
    return is_seen;
  }
  void expect_all(const at::Tensor& tensor, double value) {
    EXPECT_TRUE(torch::equal(tensor.detach(), torch::full_like(tensor, value)))
        << tensor[0].item<double>() << " … " << tensor[-1].item<double>() << ", not " << value;
    barrier();  // no rank may write before all have compared
  }

  at::Tensor weight_ = filled(1).requires_grad_();
};

TEST_F(FrozenParametersTest, NodesKeepOneCopy_WithTheFirstRanksValues) {
  if (!shares_memory()) GTEST_SKIP() << "these ranks share no memory";
  const at::Tensor of_the_group = filled(10 + rank());
  const at::Tensor of_the_model = filled(20 + rank(), at::kChar);
  const at::Tensor view = of_the_model.narrow(0, 5, 7);
  torch::optim::SGD inner({weight_, of_the_group}, 1.0);
  DistributedOptimizer optimizer(inner, {{"weight", weight_}, {"frozen", of_the_model}},
                                 full_per_node());
  expect_all(of_the_group, 10 + first_of_node());
  expect_all(of_the_model, 20 + first_of_node());
  expect_all(view, 20 + first_of_node());
  EXPECT_TRUE(is_one_copy(of_the_group));
  EXPECT_TRUE(is_one_copy(of_the_model));
  broadcast_parameters({{"frozen", of_the_model}}, size() - 1);
  expect_all(of_the_model, 20 + size() - runtime_.local_size());  // the last node's value
  (weight_ * (of_the_group - of_the_group + rank() + 1)).sum().backward();
  optimizer.step();
  expect_all(weight_, 1 - 0.5 * (size() + 1));
}

TEST_F(FrozenParametersTest, ThoseThatCannotBeMoved_StayOnEachRank) {
  if (runtime_.local_size() == 1) GTEST_SKIP() << "a rank alone moves none";
  const at::Tensor whole = torch::full({2, kElements}, 1.0 * rank());
  const at::Tensor row = whole[1];
  const at::Tensor columns = torch::full({4, 6}, 1.0 * rank()).t();
  const at::Tensor tied = weight_.detach();
  torch::optim::SGD inner({weight_}, 1.0);
  DistributedOptimizer optimizer(
      inner, {{"weight", weight_}, {"row", row}, {"columns", columns}, {"tied", tied}},
      full_per_node());
  EXPECT_EQ(is_one_copy(row), runtime_.local_rank() == 0);  // the writer sees its own write anyway
  expect_all(whole, rank());
  expect_all(columns, rank());
  weight_.sum().backward();
  optimizer.step();
  expect_all(tied, 0);  // shares the parameter's memory
}

TEST_F(FrozenParametersTest, WritesOutsideOfFullParameters_AreErrors) {
  at::Tensor frozen = filled(2);
  torch::optim::SGD inner({weight_}, 1.0);
  DistributedOptimizer optimizer(inner, {{"weight", weight_}, {"encoder.bias", frozen}},
                                 full_per_node());
  frozen[3] = 7;
  const std::string text = text_thrown_by<InvalidArgument>([&] { optimizer.step(); });
  expect_contains(text, "'encoder.bias'");
  expect_contains(text, "full_parameters()");
}

TEST_F(FrozenParametersTest, MovedElements_AreErrors) {
  at::Tensor frozen = filled(2);
  torch::optim::SGD inner({weight_}, 1.0);
  DistributedOptimizer optimizer(inner, {{"weight", weight_}, {"encoder.bias", frozen}},
                                 full_per_node());
  frozen.set_data(filled(3));
  expect_contains(text_thrown_by<InvalidArgument>([&] { optimizer.step(); }), "'encoder.bias'");
}

TEST_F(FrozenParametersTest, FullParameters_CoversThem) {
  at::Tensor frozen = filled(2);
  torch::optim::SGD inner({weight_}, 1.0);
  DistributedOptimizer optimizer(inner, {{"weight", weight_}, {"encoder.bias", frozen}},
                                 full_per_node());
  for (int writer = 0; writer < size(); ++writer) {
    optimizer.full_parameters([&] {
      if (rank() == writer) frozen.fill_(10 + writer);
    });
    expect_all(frozen, 10 + writer);
    weight_.sum().backward();
    optimizer.step();
    expect_all(weight_, -writer);
  }
  if (size() == 1) GTEST_SKIP() << "the rest: one rank differs from nobody";
  const std::string text = text_thrown_by<MismatchError>(
      [&] { optimizer.full_parameters([&] { frozen.fill_(rank()); }); });
  expect_contains(text, "'encoder.bias'");
  expect_all(frozen, 9 + size());
}

TEST_F(FrozenParametersTest, SeveralOptimizersOfAModel_ShareThem) {
  at::Tensor other = filled(4).requires_grad_();
  at::Tensor frozen = filled(2);
  const Names names{{"weight", weight_}, {"other", other}, {"frozen", frozen}};
  torch::optim::SGD first_inner({weight_}, 1.0);
  torch::optim::SGD second_inner({other}, 1.0);
  DistributedOptimizer first(first_inner, names, full_per_node());
  DistributedOptimizer second(second_inner, names, full_per_node());
  EXPECT_TRUE(!shares_memory() || is_one_copy(frozen));
  second.full_parameters([&] { frozen.fill_(3); });
  for (int step = 1; step <= 2; ++step) {
    ((weight_ + other) * frozen).sum().backward();
    first.step();
    second.step();
    expect_all(weight_, 1 - 3 * step);
    expect_all(other, 4 - 3 * step);
  }
}

TEST_F(FrozenParametersTest, DifferentOnes_AreErrorsOnAllRanks) {
  if (size() == 1) GTEST_SKIP() << "one rank differs from nobody";
  at::Tensor frozen = filled(4).requires_grad_(rank() == 0);
  torch::optim::SGD inner({weight_}, 1.0);
  const std::string text = text_thrown_by<MismatchError>([&] {
    DistributedOptimizer(inner, {{"weight", weight_}, {"encoder.bias", frozen}}, full_per_node());
  });
  expect_contains(text, "number of frozen parameters");
}

}  // namespace kolo::test::frozen_parameters_test

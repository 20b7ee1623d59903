#include "kolo/tensor_collectives.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/error.hpp"
#include "kolo/parameter_sync.hpp"
#include "kolo/runtime.hpp"
#include "torch/models.hpp"

namespace kolo::test {
namespace {

class TensorCollectivesTest : public testing::Test {
 protected:
  int rank() const { return runtime_.rank(); }
  int size() const { return runtime_.size(); }
  /// [[r, r+1, r+2], [r+10, …]] of this rank, in any type.
  at::Tensor own(torch::ScalarType type) const {
    const at::Tensor rows = torch::arange(2).unsqueeze(1) * 10;
    return (rows + torch::arange(3).unsqueeze(0) + rank()).to(type);
  }
  /// The sum of all ranks' `own`.
  at::Tensor sum(torch::ScalarType type) const {
    const at::Tensor rows = torch::arange(2).unsqueeze(1) * 10;
    const at::Tensor base = rows + torch::arange(3).unsqueeze(0);
    return (base * size() + size() * (size() - 1) / 2).to(type);
  }

  Runtime runtime_;
};

TEST_F(TensorCollectivesTest, AllreduceSumsEveryType) {
  for (const auto type : {torch::kUInt8, torch::kInt8, torch::kInt16, torch::kInt32, torch::kInt64,
                          torch::kFloat16, torch::kBFloat16, torch::kFloat32, torch::kFloat64}) {
    const at::Tensor input = own(type);
    const at::Tensor kept = input.clone();
    EXPECT_TRUE(torch::equal(allreduce(input, {.op = ReduceOp::Sum}), sum(type)))
        << c10::toString(type);
    EXPECT_TRUE(torch::equal(input, kept));
    at::Tensor changed = own(type);
    EXPECT_EQ(&allreduce_(changed, {.op = ReduceOp::Sum}), &changed);
    EXPECT_TRUE(torch::equal(changed, sum(type)));
  }
}

TEST_F(TensorCollectivesTest, AllreduceReadsAndWritesAnyStrides) {
  const at::Tensor transposed = own(torch::kFloat32).t();
  EXPECT_TRUE(torch::equal(allreduce(transposed, {.op = ReduceOp::Sum}), sum(torch::kFloat32).t()));
  at::Tensor whole = torch::zeros({2, 6});
  at::Tensor every_other = whole.slice(1, 0, 6, 2);
  every_other.copy_(own(torch::kFloat32));
  allreduce_(every_other, {.op = ReduceOp::Sum});
  EXPECT_TRUE(torch::equal(whole.slice(1, 0, 6, 2), sum(torch::kFloat32)));
  EXPECT_TRUE(torch::equal(whole.slice(1, 1, 6, 2), torch::zeros({2, 3})));
}

TEST_F(TensorCollectivesTest, AllreduceOfScalarsEmptyTensorsAndParameters) {
  EXPECT_EQ(allreduce(torch::tensor(2.0 * rank()), {.op = ReduceOp::Max}).item<double>(),
            2.0 * (size() - 1));
  EXPECT_EQ(allreduce(torch::empty({0, 4})).sizes(), (std::vector<std::int64_t>{0, 4}));
  const at::Tensor leaf = torch::ones({2}, torch::requires_grad());
  const at::Tensor reduced = allreduce(leaf, {.op = ReduceOp::Sum});
  EXPECT_FALSE(reduced.requires_grad());
  EXPECT_EQ(reduced[0].item<float>(), static_cast<float>(size()));
}

TEST_F(TensorCollectivesTest, ManyInFlightInAnotherOrderOnEveryRank) {
  std::vector<TensorHandle> handles(50);
  for (int i = 0; i < 50; ++i) {
    const int which = (i + 13 * rank()) % 50;
    handles[static_cast<std::size_t>(which)] =
        allreduce_async(torch::full({which + 1}, which + rank(), torch::kFloat64),
                        {.op = ReduceOp::Sum, .name = std::to_string(which)});
  }
  for (int i = 0; i < 50; ++i) {
    EXPECT_TRUE(torch::equal(
        handles[static_cast<std::size_t>(i)].result(),
        torch::full({i + 1}, i * size() + size() * (size() - 1) / 2.0, torch::kFloat64)));
  }
}

TEST_F(TensorCollectivesTest, DroppedHandlesKeepTheirTensorsAlive) {
  for (int i = 0; i < 20; ++i) {
    static_cast<void>(
        allreduce_async(torch::full({100000}, 1.0 * i), {.name = "dropped" + std::to_string(i)}));
  }
  EXPECT_EQ(allreduce(torch::ones({1}), {.op = ReduceOp::Sum}).item<float>(),
            static_cast<float>(size()));
}

TEST_F(TensorCollectivesTest, AllgatherPutsUnevenRowsInOrder) {
  const at::Tensor mine = torch::full({rank(), 2}, rank());  // rank 0 has none
  const at::Tensor all = allgather(mine);
  ASSERT_EQ(all.sizes(), (std::vector<std::int64_t>{size() * (size() - 1) / 2, 2}));
  std::int64_t row = 0;
  for (int r = 0; r < size(); ++r) {
    for (int i = 0; i < r; ++i, ++row) EXPECT_EQ(all[row][1].item<double>(), r);
  }
  EXPECT_THROW(allgather(torch::tensor(1.0)), InvalidArgument);
}

TEST_F(TensorCollectivesTest, BroadcastsFromEveryRoot) {
  for (int root = 0; root < size(); ++root) {
    const at::Tensor expected = torch::arange(5) + 100 * root;
    EXPECT_TRUE(torch::equal(broadcast(torch::arange(5) + 100 * rank(), root), expected));
    at::Tensor strided = (torch::arange(10) + 1).slice(0, 0, 10, 2);
    if (rank() == root) strided.copy_(expected);
    broadcast_(strided, root);
    EXPECT_TRUE(torch::equal(strided, expected));
  }
}

TEST_F(TensorCollectivesTest, RefusesWhatItCannotMove) {
  EXPECT_THROW(allreduce(at::Tensor{}), InvalidArgument);
  EXPECT_THROW(allreduce(torch::zeros({2}, torch::kComplexFloat)), InvalidArgument);
  EXPECT_THROW(allreduce(torch::zeros({2}).to_sparse()), InvalidArgument);
  EXPECT_THROW(broadcast(torch::zeros({2}), size()), InvalidArgument);
  EXPECT_THROW(allreduce(torch::zeros({2}, torch::kBool)), InvalidArgument);
}

TEST_F(TensorCollectivesTest, BroadcastsParametersAndBuffers) {
  torch::manual_seed(static_cast<std::uint64_t>(rank()));
  torch::nn::Sequential model(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4));
  model->forward(torch::randn({8, 3}));  // running statistics differ now
  const int root = size() - 1;
  broadcast_parameters(*model, root);

  torch::manual_seed(static_cast<std::uint64_t>(root));
  torch::nn::Sequential reference(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4));
  reference->forward(torch::randn({8, 3}));
  EXPECT_TRUE(torch::equal(flat(*model), flat(*reference)));
  for (std::size_t i = 0; i < model->buffers().size(); ++i) {
    EXPECT_TRUE(torch::equal(model->buffers()[i], reference->buffers()[i]));
  }
}

TEST_F(TensorCollectivesTest, BroadcastsOptimizerStateToRanksThatHaveNone) {
  torch::nn::Sequential model = make_mlp(torch::kFloat32);
  const auto optimizer = make_optimizer(Algorithm::Adam, model->parameters());
  if (rank() == 0) {  // three steps; the others have none, and another learning rate
    for (int step = 0; step < 3; ++step) {
      optimizer->zero_grad();
      model->forward(batch_rows(step, 0, 4, 9, torch::kFloat32)).sum().backward();
      optimizer->step();
    }
    optimizer->param_groups()[0].options().set_lr(0.125);
  }
  broadcast_parameters(*model, 0);
  const at::Tensor before = flat(*model);
  broadcast_optimizer_state(*optimizer, 0);
  EXPECT_TRUE(torch::equal(flat(*model), before));
  EXPECT_DOUBLE_EQ(optimizer->param_groups()[0].options().get_lr(), 0.125);
  ASSERT_EQ(optimizer->state().size(), model->parameters().size());
  for (const at::Tensor& parameter : model->parameters()) {
    const auto& state = static_cast<const torch::optim::AdamParamState&>(
        *optimizer->state().at(parameter.unsafeGetTensorImpl()));
    EXPECT_EQ(state.step(), 3);
    const at::Tensor moments = state.exp_avg().clone();
    EXPECT_TRUE(torch::equal(broadcast(moments, 0), state.exp_avg()));
  }
}

}  // namespace
}  // namespace kolo::test

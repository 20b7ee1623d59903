// Sparse gradients of embeddings that look up some rows.
#include <cmath>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/runtime.hpp"
#include "kolo/torch/distributed_optimizer.hpp"
#include "kolo/torch/tensor_collectives.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test::sparse_gradients_test {

class OptimizerSparseTest : public TrainingTest {};

TEST_F(OptimizerSparseTest, SparseAsDense_MakesGradientsDense) {
  const at::Tensor table = torch::zeros({6, 2}, torch::requires_grad());
  torch::optim::SGD inner({table}, 1.0);
  const auto look_up = [&](std::int64_t row) {
    (torch::embedding(table, torch::tensor({row, row + 1}), -1, false, /*sparse=*/true).sum() *
     (rank() + 1))
        .backward();
  };
  {
    DistributedOptimizer optimizer(inner, {{"table", table}}, {.sparse_as_dense = true});
    for (const bool keeps_memory : {false, false, true, true}) {
      optimizer.zero_grad(!keeps_memory);
      look_up(rank());
      optimizer.synchronize();
      at::Tensor expected = torch::zeros({6, 2});
      for (int r = 0; r < size(); ++r) expected.narrow(0, r, 2) += (r + 1.0) / size();
      EXPECT_TRUE(torch::allclose(table.grad(), expected)) << table.grad();
      optimizer.step();
    }
  }
}

TEST_F(OptimizerSparseTest, SparseGradients_StaySparseFromTheSecondStepOn) {
  const at::Tensor table = torch::zeros({6, 2}, torch::requires_grad());
  const at::Tensor dense = torch::zeros({3}, torch::requires_grad());
  torch::optim::SGD inner({dense, table}, 1.0);
  for (const bool has_groups : {false, true}) {
    DistributedOptimizer::Options options;
    if (has_groups) options.groups = {{dense}, {table}};
    DistributedOptimizer optimizer(inner, {{"table", table}}, options);
    for (int step = 0; step < 8; ++step) {
      // In step 3 rank 0 looks up nothing, in step 4 no rank does. In the first step only rank 0
      // has sparse gradients.
      const auto looks_up = [&](int r) { return step != 4 && (step != 3 || r > 0); };
      const bool is_sparse = step > 0 || rank() == 0;
      optimizer.zero_grad();
      table.detach().zero_();
      at::Tensor loss = dense.sum() * rank();
      if (looks_up(rank())) {
        const at::Tensor rows = torch::tensor({rank(), rank() + 1, rank()});  // one row twice
        loss = loss + torch::embedding(table, rows, -1, false, is_sparse).sum() * (rank() + step);
      }
      loss.backward();
      const double norm = optimizer.clip_grad_norm_(1e6);
      optimizer.step();
      at::Tensor expected = torch::zeros({6, 2});
      bool is_used = false;
      for (int r = 0; r < size(); ++r) {
        if (!looks_up(r)) continue;
        expected[r] += 2.0 * (r + step) / size();
        expected[r + 1] += 1.0 * (r + step) / size();
        is_used = true;
      }
      EXPECT_TRUE(torch::allclose(-table, expected)) << step << ": " << table;
      const double mean_rank = (size() - 1) / 2.0;
      EXPECT_NEAR(norm, std::hypot(expected.norm().item<double>(), mean_rank * std::sqrt(3.0)),
                  1e-5 * (1 + norm));
      ASSERT_EQ(table.grad().defined(), is_used) << step;
      EXPECT_TRUE(!is_used || table.grad().is_sparse() == (step > 0)) << step;
      EXPECT_TRUE(torch::allclose(dense.grad(), torch::full({3}, mean_rank)));
    }
    optimizer.zero_grad();
  }
}

TEST_F(OptimizerSparseTest, SingleElementsAndMissingGradients_AreReduced) {
  const at::Tensor table = torch::zeros({6, 2}, torch::requires_grad());
  torch::optim::SGD inner({table}, 1.0);
  DistributedOptimizer optimizer(inner, {{"table", table}});
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    const int absent = step % (size() + 1);  // no rank in the first step
    if (rank() != absent - 1) {
      const at::Tensor places = torch::full({1, 2}, rank() + 1);
      (torch::gather(table, 0, places, /*sparse_grad=*/true).sum() * (rank() + 1)).backward();
    }
    optimizer.synchronize();
    at::Tensor expected = torch::zeros({6, 2});
    for (int r = 0; r < size(); ++r) {
      if (r != absent - 1) expected[r + 1] += (r + 1.0) / size();
    }
    const at::Tensor& gradient = table.grad();
    if (!gradient.defined()) {
      EXPECT_EQ(size(), 1) << step;
    } else {
      EXPECT_TRUE(torch::allclose(gradient.to_dense(), expected)) << step << gradient;
    }
    optimizer.step();
  }
}

TEST_F(OptimizerSparseTest, ReductionThatCannotStart_EndsItsStep) {
  const at::Tensor table = torch::zeros({6, 2}, torch::requires_grad());
  const at::Tensor dense = torch::zeros({3}, torch::requires_grad());
  torch::optim::SGD inner({dense, table}, 1.0);
  DistributedOptimizer optimizer(inner, {{"dense", dense}, {"table", table}},
                                 {.groups = {{dense, table}}});
  bool fails = false;
  // Called just before the sparse gradient is submitted. A scalar has no rows.
  optimizer.register_bucket_hook([&](GradientBucket bucket) {
    if (fails) table.mutable_grad() = torch::zeros({});
    return allreduce_async_(bucket.gradients,
                            {.name = bucket.name, .process_set = bucket.process_set});
  });
  const auto backward = [&] {
    optimizer.zero_grad();
    const at::Tensor rows = torch::tensor({rank(), rank() + 1});
    (dense.sum() + torch::embedding(table, rows, -1, false, /*sparse=*/true).sum()).backward();
  };
  for (int step = 0; step < 2; ++step) {  // gradients of the first are dense
    backward();
    optimizer.step();
  }
  const at::Tensor before = table.detach().clone();
  fails = true;
  EXPECT_THROW(backward(), c10::Error);
  EXPECT_THROW(optimizer.step(), c10::Error);  // not a step with this rank's gradient alone
  EXPECT_THROW(backward(), c10::Error);
  fails = false;
  backward();  // begins by zero_grad(), which does not repeat the error
  optimizer.step();
  at::Tensor expected = before.clone();
  for (int r = 0; r < size(); ++r) expected.narrow(0, r, 2) -= 1.0 / size();
  EXPECT_TRUE(torch::allclose(table, expected)) << table;
}

TEST_F(OptimizerSparseTest, Adasum_MakesGradientsDense) {
  const at::Tensor table = torch::zeros({6, 2}, torch::requires_grad());
  torch::optim::SGD inner({table}, 1.0);
  DistributedOptimizer optimizer(inner, {{"table", table}}, {.op = ReduceOp::Adasum});
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const at::Tensor row = torch::tensor({rank()});
    torch::embedding(table, row, -1, false, /*sparse=*/true).sum().backward();
    optimizer.synchronize();
    at::Tensor sum = torch::zeros({6, 2});  // orthogonal gradients are added
    sum.narrow(0, 0, size()).fill_(1);
    EXPECT_TRUE(torch::allclose(table.grad(), sum)) << step << table.grad();
    optimizer.step();
  }
}

}  // namespace kolo::test::sparse_gradients_test

// Gradients of collectives, compared with finite differences in float64.
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include "support/mpi/variants.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test::autograd_test {

const AlsoIn also_in({"alone"});

using Function = std::function<at::Tensor(const at::Tensor&)>;

constexpr double kStep = 1e-5;

/// Expects gradients that are multiples of the derivative of the sum of all ranks' losses.
class AutogradTest : public TrainingTest {
 protected:
  using ShapeOf = std::function<Shape(int rank)>;

  at::Tensor input(const ShapeOf& shape_of) const {
    return own(shape_of(rank()), at::kDouble) * 0.1 + 0.05;
  }

  /// This rank's loss: nonlinear, and different on every rank.
  at::Tensor loss(const at::Tensor& output) const {
    const at::Tensor weights = own(output.sizes().vec(), at::kDouble, 5) * 0.3 - 0.7;
    return (output.sin() * weights).sum();
  }

  double over_all(const at::Tensor& own_loss) const {
    return allreduce(own_loss.detach(), {.op = ReduceOp::Sum, .name = "loss"}).item<double>();
  }

  /// Expects `gradient` to be `factor` times the derivative of `objective`, summed over ranks, for
  /// every element of every rank's input. The derivative is computed numerically.
  void expect_derivative(const at::Tensor& gradient, const Function& objective,
                         const ShapeOf& shape_of, double factor) const {
    const at::Tensor flat = gradient.reshape({-1});
    for (int r = 0; r < size(); ++r) {
      const std::int64_t count = values(0, shape_of(r)).numel();
      for (std::int64_t i = 0; i < count; ++i) {
        double totals[2];
        for (const int side : {0, 1}) {
          at::Tensor moved = input(shape_of);
          if (r == rank()) moved.view({-1})[i] += side == 0 ? -kStep : kStep;
          totals[side] = over_all(objective(moved));
        }
        if (r != rank()) continue;
        EXPECT_NEAR(flat[i].item<double>(), factor * (totals[1] - totals[0]) / (2 * kStep), 1e-6)
            << "element " << i;
      }
    }
  }

  void check(const Function& f, const ShapeOf& shape_of, double factor) const {
    const at::Tensor x = input(shape_of).requires_grad_();
    const at::Tensor output = f(x);
    EXPECT_TRUE(output.requires_grad());
    loss(output).backward();
    const auto objective = [&](const at::Tensor& at) { return loss(f(at)); };
    expect_derivative(x.grad(), objective, shape_of, factor);
  }

  /// Checks second derivatives: the derivative of the gradient in a direction.
  void check_twice(const Function& f, const ShapeOf& shape_of, double factor) const {
    const auto along = [&](const at::Tensor& at) {
      const at::Tensor x = at.detach().requires_grad_();
      const at::Tensor gradient =
          torch::autograd::grad({loss(f(x))}, {x}, {}, /*retain_graph=*/true,
                                /*create_graph=*/true)[0];
      return std::pair{x, (gradient * own(x.sizes().vec(), at::kDouble, 3)).sum()};
    };
    const auto [x, sum] = along(input(shape_of));
    sum.backward();
    expect_derivative(
        x.grad(), [&](const at::Tensor& at) { return along(at).second; }, shape_of, factor);
  }

  static Shape same(int) { return {3, 2}; }
  static Shape uneven(int rank) { return {(rank + 1) % 3, 2}; }  // no rows on rank 2

  at::Tensor rows_by_split(const at::Tensor& x) const {
    // All rows go to the next rank.
    std::vector<std::int64_t> splits(static_cast<std::size_t>(size()), 0);
    splits[static_cast<std::size_t>((rank() + 1) % size())] = x.size(0);
    return alltoall(x, splits, {.name = "x"}).output;
  }
};

TEST_F(AutogradTest, Allreduce_HasTheGradientOfTheSum) {
  for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Average}) {
    const AllreduceOptions options{.op = op, .prescale = 0.5, .postscale = 3, .name = "x"};
    check([&](const at::Tensor& x) { return allreduce(x, options); }, same, 1);
  }
  check_twice([](const at::Tensor& x) { return allreduce(x, {.name = "x"}); }, same, 1);
}

TEST_F(AutogradTest, Allgather_HasTheGradientOfTheMeanOrOfTheSum) {
  const auto gather = [](GatherGradient gradient) {
    return [gradient](const at::Tensor& x) {
      return allgather(x, {.name = "x", .gradient = gradient});
    };
  };
  check(gather(GatherGradient::Average), uneven, 1.0 / size());
  check(gather(GatherGradient::Sum), uneven, 1);
  check_twice(gather(GatherGradient::Average), uneven, 1.0 / size());
}

TEST_F(AutogradTest, Broadcast_HasTheGradientOfTheMeanOnTheRoot) {
  const int root = size() - 1;
  const auto from_root = [root](const at::Tensor& x) { return broadcast(x, root, {.name = "x"}); };
  check(from_root, same, 1.0 / size());
  check_twice(from_root, same, 1.0 / size());
  const at::Tensor x = own({3}).requires_grad_();
  broadcast(x, root).div(0).sum().backward();  // infinite on the root, but zero elsewhere
  if (rank() != root) expect_equal(x.grad(), at::zeros({3}));
}

TEST_F(AutogradTest, Alltoall_HasTheGradientOfTheSum) {
  const auto exchange = [this](const at::Tensor& x) { return rows_by_split(x); };
  check(exchange, uneven, 1);
  check_twice(exchange, uneven, 1);
}

TEST_F(AutogradTest, ReduceScatter_HasSizeTimesTheGradientOfTheSum) {
  for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Average}) {
    const AllreduceOptions options{.op = op, .prescale = 0.5, .postscale = 3, .name = "x"};
    check([&](const at::Tensor& x) { return reduce_scatter(x, options); }, same, size());
  }
  check_twice([](const at::Tensor& x) { return reduce_scatter(x, {.name = "x"}); }, same, size());
}

TEST_F(AutogradTest, Groups_HaveTheGradientsOfTheirTensors) {
  const auto group = [](const at::Tensor& x) {
    return std::vector<at::Tensor>{x * x, at::ones({5}, at::kLong), x.t()};
  };
  const auto joined = [](const std::vector<at::Tensor>& outputs) {
    return at::cat({outputs[0].flatten(), outputs[2].flatten() * 2});
  };
  check([&](const at::Tensor& x) { return joined(grouped_allreduce(group(x), {.name = "x"})); },
        same, 1);
  check([&](const at::Tensor& x) { return joined(grouped_allgather(group(x), {.name = "x"})); },
        same, 1.0 / size());
  check(
      [&](const at::Tensor& x) { return joined(grouped_reduce_scatter(group(x), {.name = "x"})); },
      same, size());
  check([&](const at::Tensor& x) { return joined(grouped_broadcast(group(x), 0, {.name = "x"})); },
        same, 1.0 / size());
}

TEST_F(AutogradTest, UnusedOutputs_CountAsZeros) {
  const at::Tensor x = own({3}).requires_grad_();
  const std::vector<at::Tensor> sums = grouped_allreduce({x, x * 2}, {.op = ReduceOp::Sum});
  // All ranks have a loss of the first tensor, only rank 0 one of the second.
  at::Tensor own_loss = sums[0].sum();
  if (rank() == 0) own_loss = own_loss + sums[1].sum() * 10;
  own_loss.backward();
  expect_equal(x.grad(), at::full({3}, static_cast<float>(size() + 20)));
}

TEST_F(AutogradTest, Gradients_HaveTheirOwnName) {
  const AllreduceOptions options{.op = ReduceOp::Sum, .name = "x"};
  const at::Tensor x = own({3}).requires_grad_();
  const at::Tensor output = allreduce(x, options);
  TensorHandle next;  // in flight on rank 0 while backward runs
  if (rank() == 0) next = allreduce_async(own({3}), options);
  EXPECT_NO_THROW(output.sum().backward());
  if (rank() != 0) next = allreduce_async(own({3}), options);
  expect_equal(next.result(), sum({3}));
}

TEST_F(AutogradTest, ProcessSet_HasItsOwnGradients) {
  if (size() == 1) GTEST_SKIP() << "a world of one rank has one process set";
  ProcessSet& set = runtime_.add_process_set({0, size() - 1});
  if (!set.included()) return;
  const at::Tensor x = own({4, 2}).requires_grad_();
  const float r = static_cast<float>(rank() + 1);
  (allreduce(x, {.op = ReduceOp::Sum, .process_set = &set}) * r).sum().backward();
  expect_equal(x.grad(), at::full({4, 2}, static_cast<float>(size() + 1)));
  x.mutable_grad().reset();
  (allgather(x, {.process_set = &set}) * r).sum().backward();
  expect_equal(x.grad(), at::full({4, 2}, static_cast<float>(size() + 1) / 2));
  x.mutable_grad().reset();
  (reduce_scatter(x, {.op = ReduceOp::Sum, .process_set = &set}) * r).sum().backward();
  expect_equal(x.grad(), at::cat({at::full({2, 2}, 2.0f),
                                  at::full({2, 2}, 2.0f * static_cast<float>(size()))}));
  x.mutable_grad().reset();
  const int root = size() - 1;
  (broadcast(x, root, {.process_set = &set}) * r).sum().backward();
  expect_equal(x.grad(),
               at::full({4, 2}, rank() == root ? static_cast<float>(size() + 1) / 2 : 0.0f));
  x.mutable_grad().reset();
  (alltoall(x, {}, {.process_set = &set}).output * r).sum().backward();
  expect_equal(x.grad(),
               at::cat({at::full({2, 2}, 1.0f), at::full({2, 2}, static_cast<float>(size()))}));
}

TEST_F(AutogradTest, AveragesOf16BitGradients_AreFinite) {
  const at::Tensor x = own({2}, at::kHalf).requires_grad_();
  const at::Tensor gradient = at::full({2 * size()}, 30000, at::kHalf);
  allgather(x).backward(gradient);
  expect_equal(x.grad(), at::full({2}, 30000, at::kHalf));
}

TEST_F(AutogradTest, ReductionsWithoutGradient_ThrowInBackward) {
  for (const ReduceOp op : {ReduceOp::Min, ReduceOp::Max, ReduceOp::Product}) {
    const at::Tensor x = own({3}).requires_grad_();
    const at::Tensor reduced = allreduce(x, {.op = op, .name = "x"});
    const at::Tensor scattered = reduce_scatter(x, {.op = op, .name = "y"});
    const std::string name(name_of(op));
    expect_refused([&] { reduced.sum().backward(); },
                   "allreduce 'x': the reduction " + name + " has no gradient");
    expect_refused([&] { scattered.sum().backward(); },
                   "reduce_scatter 'y': the reduction " + name);
  }
  const at::Tensor x = own({3}).requires_grad_();
  const at::Tensor combined = allreduce(x, {.op = ReduceOp::Adasum, .name = "x"});
  expect_refused([&] { combined.sum().backward(); },
                 "allreduce 'x': the reduction Adasum has no gradient");
}

TEST_F(AutogradTest, NoGradMode_RecordsNothing) {
  const at::Tensor x = own({3}).requires_grad_();
  EXPECT_FALSE(allreduce(own({3})).requires_grad());
  EXPECT_FALSE(alltoall(own({size()})).output.requires_grad());
  const c10::AutoGradMode guard(false);
  EXPECT_FALSE(allreduce(x).requires_grad());
  EXPECT_FALSE(broadcast(x, 0).requires_grad());
  EXPECT_FALSE(allgather_async(x).result().requires_grad());
}

TEST_F(AutogradTest, InPlaceWriteToASavedTensor_IsDetected) {
  const at::Tensor x = own({3}).requires_grad_();
  at::Tensor y = x.sigmoid();  // backward needs y
  at::Tensor z = x.sigmoid();
  at::Tensor strided = z.detach().slice(0, 0, 3, 2);
  {
    const c10::AutoGradMode guard(false);
    allreduce_(y);
  }
  broadcast_(strided, 0);
  EXPECT_THROW(y.sum().backward(), c10::Error);
  EXPECT_THROW(z.sum().backward(), c10::Error);
}

TEST_F(AutogradTest, AsyncForms_HaveTheGradientsOfThoseThatBlock) {
  const auto at_once = [](auto handle) { return handle.result(); };
  const AllreduceOptions sum{.op = ReduceOp::Sum, .name = "x"};
  check([&](const at::Tensor& x) { return at_once(allreduce_async(x, sum)); }, same, 1);
  check_twice([&](const at::Tensor& x) { return at_once(allreduce_async(x, sum)); }, same, 1);
  check([&](const at::Tensor& x) { return at_once(reduce_scatter_async(x, sum)); }, same, size());
  check([&](const at::Tensor& x) { return at_once(allgather_async(x, {.name = "x"})); }, uneven,
        1.0 / size());
  check([&](const at::Tensor& x) { return at_once(broadcast_async(x, 0, {.name = "x"})); }, same,
        1.0 / size());
  check(
      [&](const at::Tensor& x) {
        std::vector<std::int64_t> splits(static_cast<std::size_t>(size()), 0);
        splits.back() = x.size(0);
        return at_once(alltoall_async(x, splits, {.name = "x"})).output;
      },
      uneven, 1);
}

// What happens to the input and to the mode after the call does not matter.
TEST_F(AutogradTest, AsyncForms_RecordTheCallsInput) {
  const at::Tensor x = own({3}).requires_grad_();
  at::Tensor doubled = x * 2;
  TensorHandle handle = allreduce_async(doubled, {.op = ReduceOp::Sum});
  handle.wait();
  doubled.mul_(5);
  TensorHandle other = allgather_async(doubled, {.gradient = GatherGradient::Sum});
  at::Tensor gathered;
  {
    const c10::AutoGradMode guard(false);
    gathered = other.result();
  }
  (handle.result().sum() + gathered.sum() * 100).backward();
  const double ranks = size();
  expect_equal(x.grad(), at::full({3}, static_cast<float>(2 * ranks + 1000 * ranks)));
}

TEST_F(AutogradTest, InPlaceInsideTheGraph_IsRefusedOnAllRanks) {
  const at::Tensor x = own({3}).requires_grad_();
  at::Tensor inside = is_last() ? x * 2 : own({3});
  at::Tensor view = is_last() ? x.view({3, 1}) : own({3, 1});
  const std::string text = "the tensor was computed from tensors that need a gradient";
  expect_refused([&] { allreduce_(inside, {.name = "x"}); }, text);
  expect_refused([&] { allreduce_async_(view, {.name = "x"}).wait(); }, text);
  expect_refused([&] { broadcast_(inside, 0, {.name = "x"}); }, text);
  expect_refused([&] { grouped_allreduce_({own({2}), inside}, {.name = "x"}); }, text);
  expect_equal(x.detach(), own({3}));
}

TEST_F(AutogradTest, Leaves_GetNewValuesInPlace) {
  at::Tensor leaf = own({3}).requires_grad_();
  allreduce_(leaf, {.op = ReduceOp::Sum});
  expect_equal(leaf.detach(), sum({3}));
  (leaf * 3).sum().backward();
  expect_equal(leaf.grad(), at::full({3}, 3.0f));
}

TEST_F(AutogradTest, SparseTensorsInsideTheGraph_AreRefused) {
  const at::Tensor x = own({3}).requires_grad_();
  expect_refused([&] { sparse_allreduce(is_last() ? x.to_sparse() : own({3}).to_sparse()); },
                 "sparse_allreduce has no gradient");
}

}  // namespace kolo::test::autograd_test

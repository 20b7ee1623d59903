// Collectives on complex tensors and their gradients, compared with LibTorch in one process.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "support/mpi/variants.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test::complex_test {

const AlsoIn also_in({"alone"});

constexpr at::ScalarType kTypes[] = {at::kComplexFloat, at::kComplexDouble};

/// Small integers, so that products of four ranks are exact. Real and imaginary parts differ.
at::Tensor numbers(int rank, const Shape& shape, at::ScalarType type) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  const at::Tensor i = at::arange(count, at::kLong).reshape(shape);
  return at::complex(((i + 2 * rank) % 5 - 2).to(at::kDouble),
                     ((i * 3 + rank) % 7 - 1).to(at::kDouble))
      .to(type);
}

class ComplexTest : public TrainingTest {
 protected:
  using Function = std::function<at::Tensor(const at::Tensor&)>;
  using Formula = std::function<at::Tensor(const std::vector<at::Tensor>&, int rank)>;

  std::vector<at::Tensor> all(const Shape& shape, at::ScalarType type) const {
    std::vector<at::Tensor> tensors;
    for (int r = 0; r < size(); ++r) tensors.push_back(numbers(r, shape, type));
    return tensors;
  }
  at::Tensor rows_of(const at::Tensor& whole, int rank) const {
    std::int64_t first = 0;
    for (int r = 0; r < rank; ++r) first += scattered_rows(whole.size(0), size(), r);
    return whole.narrow(0, first, scattered_rows(whole.size(0), size(), rank));
  }

  /// Not holomorphic, and different on every rank.
  static at::Tensor loss(const at::Tensor& output, int rank) {
    const at::Tensor weights = numbers(rank + 3, output.sizes().vec(), output.scalar_type());
    return at::real(output.conj() * weights * output * output).sum() + output.abs().sum();
  }

  /// Expects the gradient of `f` to be `factor` times that of the sum of all ranks' losses.
  /// `formula` computes in one process what `f` returns on a rank.
  void expect_gradient(const Function& f, const Formula& formula, double factor) const {
    for (const at::ScalarType type : kTypes) {
      const at::Tensor x = (numbers(rank(), {5, 2}, type) + 0.25).requires_grad_();
      loss(f(x), rank()).backward();
      std::vector<at::Tensor> leaves;
      for (const at::Tensor& each : all({5, 2}, type)) {
        leaves.push_back((each + 0.25).requires_grad_());
      }
      at::Tensor total = at::zeros({}, at::kDouble);
      for (int r = 0; r < size(); ++r) total = total + loss(formula(leaves, r), r);
      total.backward();
      const at::Tensor expected = leaves[static_cast<std::size_t>(rank())].grad() * factor;
      EXPECT_TRUE(at::allclose(x.grad(), expected, 1e-4, 1e-4)) << x.grad() << "not" << expected;
    }
  }
};

at::Tensor total_of(const std::vector<at::Tensor>& tensors) { return at::stack(tensors).sum(0); }

TEST_F(ComplexTest, Reductions_AreThoseOfLibTorch) {
  for (const at::ScalarType type : kTypes) {
    const at::Tensor mine = numbers(rank(), {7, 3}, type);
    const std::vector<at::Tensor> inputs = all({7, 3}, type);
    const at::Tensor sum = total_of(inputs);
    const at::Tensor product = at::stack(inputs).prod(0);
    for (const auto& [op, expected] :
         {std::pair{ReduceOp::Sum, sum}, {ReduceOp::Product, product}}) {
      expect_equal(allreduce(mine, {.op = op}), expected);
      expect_equal(reduce_scatter(mine, {.op = op}), rows_of(expected, rank()));
      at::Tensor changed = mine.clone();
      allreduce_(changed, {.op = op, .compression = Compression::fp16()});
      expect_equal(changed, expected);
    }
    const AllreduceOptions scaled{.prescale = 0.5, .postscale = 4};
    EXPECT_TRUE(at::allclose(allreduce(mine, scaled), sum * 2 / size()));
    EXPECT_TRUE(at::allclose(reduce_scatter(mine, scaled), rows_of(sum * 2 / size(), rank())));
    at::Tensor alike = numbers(0, {7, 3}, type);  // the Adasum of equal numbers is that number
    EXPECT_TRUE(at::allclose(allreduce(alike, {.op = ReduceOp::Adasum}), alike));
  }
}

TEST_F(ComplexTest, Orders_AreRefusedOnAllRanks) {
  for (const ReduceOp op : {ReduceOp::Min, ReduceOp::Max}) {
    const std::string text = std::string(name_of(op)) + " of complex128 is not defined: complex " +
                             "numbers have no order. Reduce the real and imaginary parts";
    const at::Tensor mine = numbers(rank(), {3}, at::kComplexDouble);
    expect_refused([&] { allreduce(mine, {.op = op, .name = "x"}); }, text);
    expect_refused([&] { reduce_scatter(mine, {.op = op, .name = "x"}); }, text);
    const at::Tensor parts = allreduce(at::view_as_real(mine), {.op = op});
    std::vector<at::Tensor> all_parts;
    for (const at::Tensor& each : all({3}, at::kComplexDouble)) {
      all_parts.push_back(at::view_as_real(each));
    }
    const at::Tensor stack = at::stack(all_parts);
    expect_equal(parts, op == ReduceOp::Min ? stack.amin(0) : stack.amax(0));
  }
}

TEST_F(ComplexTest, Moves_KeepBothParts) {
  for (const at::ScalarType type : kTypes) {
    for (int root = 0; root < size(); ++root) {
      at::Tensor mine = numbers(rank(), {4, 3}, type);
      expect_equal(broadcast(mine, root), numbers(root, {4, 3}, type));
      broadcast_(mine, root);
      expect_equal(mine, numbers(root, {4, 3}, type));
    }
    std::vector<at::Tensor> rows;
    std::vector<at::Tensor> received;
    const std::vector<std::int64_t> splits(static_cast<std::size_t>(size()), 2);
    for (int r = 0; r < size(); ++r) {
      rows.push_back(numbers(r, {r + 1, 3}, type));
      received.push_back(numbers(r, {2 * size(), 3}, type).narrow(0, 2 * rank(), 2));
    }
    expect_equal(allgather(numbers(rank(), {rank() + 1, 3}, type)), at::cat(rows));
    expect_equal(alltoall(numbers(rank(), {2 * size(), 3}, type), splits).output,
                 at::cat(received));
  }
}

TEST_F(ComplexTest, SparseSumsAndAverages_AreThoseOfDenseTensors) {
  const at::Tensor mine = numbers(rank(), {5, 2}, at::kComplexFloat);
  const at::Tensor sum = total_of(all({5, 2}, at::kComplexFloat));
  expect_equal(sparse_allreduce(mine.to_sparse(1), {.op = ReduceOp::Sum}).to_dense(), sum);
  EXPECT_TRUE(at::allclose(sparse_allreduce(mine.to_sparse(1)).to_dense(), sum / size()));
  for (const bool is_coalesced : {false, true}) {
    const at::Tensor conjugate =
        at::sparse_coo_tensor(at::arange(5).view({1, 5}), mine.conj(), {5, 2})
            ._coalesced_(is_coalesced);
    expect_equal(sparse_allreduce(conjugate, {.op = ReduceOp::Sum}).to_dense(),
                 sum.conj().resolve_conj());
  }
}

TEST_F(ComplexTest, LazyConjugates_AreWhatTheyStandFor) {
  const AllreduceOptions options{.op = ReduceOp::Sum};
  const at::Tensor sum = total_of(all({6}, at::kComplexDouble));
  at::Tensor mine = numbers(rank(), {6}, at::kComplexDouble);
  ASSERT_TRUE(mine.conj().is_conj());
  expect_equal(allreduce(mine.conj(), options), sum.conj().resolve_conj());
  expect_equal(allreduce(at::imag(mine.conj()), options), at::imag(sum.conj()).resolve_neg());
  expect_equal(broadcast(mine.conj(), size() - 1),
               numbers(size() - 1, {6}, at::kComplexDouble).conj().resolve_conj());
  at::Tensor conjugate = mine.conj();
  allreduce_(conjugate, options);
  expect_equal(mine, sum);
}

TEST_F(ComplexTest, Gradients_AreThoseOfOneProcess) {
  using Tensors = std::vector<at::Tensor>;
  const AllreduceOptions scaled{.op = ReduceOp::Sum, .prescale = 0.5, .postscale = 3};
  expect_gradient([&](const at::Tensor& x) { return allreduce(x * x.conj() * x, scaled); },
                  [](const Tensors& xs, int) {
                    Tensors terms;
                    for (const at::Tensor& x : xs) terms.push_back(x * x.conj() * x * 1.5);
                    return total_of(terms);
                  },
                  1);
  expect_gradient([](const at::Tensor& x) { return allreduce(x); },
                  [this](const Tensors& xs, int) { return total_of(xs) / size(); }, 1);
  expect_gradient([&](const at::Tensor& x) { return reduce_scatter(x, scaled); },
                  [this](const Tensors& xs, int rank) { return rows_of(total_of(xs) * 1.5, rank); },
                  size());
  for (const GatherGradient kind : {GatherGradient::Average, GatherGradient::Sum}) {
    expect_gradient([&](const at::Tensor& x) { return allgather(x, {.gradient = kind}); },
                    [](const Tensors& xs, int) { return at::cat(xs); },
                    kind == GatherGradient::Sum ? 1 : 1.0 / size());
  }
  const auto root = static_cast<std::size_t>(size() - 1);
  expect_gradient([&](const at::Tensor& x) { return broadcast(x + 0 * x, size() - 1); },
                  [&](const Tensors& xs, int) { return xs[root] + 0 * at::cat(xs).sum(); },
                  1.0 / size());
  std::vector<std::int64_t> splits(static_cast<std::size_t>(size()), 0);
  splits[static_cast<std::size_t>((rank() + 1) % size())] = 5;
  expect_gradient([&](const at::Tensor& x) { return alltoall(x, splits).output; },
                  [this](const Tensors& xs, int rank) {
                    return xs[static_cast<std::size_t>((rank + size() - 1) % size())];
                  },
                  1);
}

TEST_F(ComplexTest, GradientOfAProduct_IsRefused) {
  const at::Tensor x = numbers(rank(), {3}, at::kComplexFloat).requires_grad_();
  const at::Tensor product = allreduce(x, {.op = ReduceOp::Product, .name = "x"});
  expect_refused([&] { product.abs().sum().backward(); }, "Product has no gradient");
}

}  // namespace kolo::test::complex_test

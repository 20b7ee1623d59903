// Sums of sparse tensors.
#include "support/mpi/variants.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test::sparse_test {

const AlsoIn also_in({"alone", "uneven"});

class SparseTest : public TrainingTest {
 protected:
  /// Rank r's tensor: entries at rows r, r + 1 and r again; [rows, 2], with one sparse dimension.
  static at::Tensor sparse(int r, std::int64_t rows, at::ScalarType type = at::kDouble) {
    const at::Tensor indices = at::tensor({r, r + 1, r}, at::kLong).unsqueeze(0);
    return at::sparse_coo_tensor(indices, values(r, {3, 2}, type) + 1, {rows, 2});
  }
  at::Tensor dense_sum(std::int64_t rows, at::ScalarType type = at::kDouble) const {
    at::Tensor sum = at::zeros({rows, 2}, type);
    for (int r = 0; r < size(); ++r) sum += sparse(r, rows, type).to_dense();
    return sum;
  }
};

TEST_F(SparseTest, Sum_CombinesEntriesOfAllRanks) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kInt, at::kLong}) {
    const at::Tensor sum = sparse_allreduce(sparse(rank(), 6, type), {.op = ReduceOp::Sum});
    expect_equal(sum.to_dense(), dense_sum(6, type), c10::toString(type));
    EXPECT_FALSE(sum.is_coalesced());
    EXPECT_EQ(sum._nnz(), 2 * size());  // coalesced locally first
  }
}

TEST_F(SparseTest, AverageAndScales_AreApplied) {
  const at::Tensor mean = sparse_allreduce(sparse(rank(), 6));
  EXPECT_TRUE(at::allclose(mean.to_dense(), dense_sum(6) / size()));
  const at::Tensor scaled =
      sparse_allreduce(sparse(rank(), 6), {.op = ReduceOp::Sum, .prescale = 0.5, .postscale = 6});
  EXPECT_TRUE(at::allclose(scaled.to_dense(), dense_sum(6) * 3));
}

TEST_F(SparseTest, AnyNumberOfEntriesAndDimensions_Works) {
  // Rank r has r entries in a matrix of scalars, so rank 0 has none.
  const auto matrix = [&](int r) {
    const at::Tensor places = at::stack({at::arange(r), at::arange(r) * 2 % 5});
    return at::sparse_coo_tensor(places, values(r, {r}) + 1, {4, 5});
  };
  at::Tensor expected = at::zeros({4, 5});
  for (int r = 0; r < size(); ++r) expected += matrix(r).to_dense();
  TensorHandle handle = sparse_allreduce_async(matrix(rank()), {.op = ReduceOp::Sum});
  expect_equal(handle.result().to_dense(), expected);
  EXPECT_EQ(sparse_allreduce(at::zeros({3, 4}).to_sparse())._nnz(), 0);
  // Dense sizes are compared, but neither moved nor multiplied.
  const Shape huge{std::int64_t{1} << 40, std::int64_t{1} << 20};
  const at::Tensor entry = at::sparse_coo_tensor(at::full({2, 1}, 7L), own({1}), huge);
  EXPECT_EQ(sparse_allreduce(entry).sizes(), at::IntArrayRef(huge));
}

TEST_F(SparseTest, Average_DividesByTheActiveRanks) {
  const AllreduceOptions options{.join_divisor = JoinDivisor::Active, .name = "active"};
  if (is_last() && size() > 1) {
    join();
    return;
  }
  const int active = std::max(size() - 1, 1);
  barrier({.name = "late", .process_set = nullptr});  // completes when the last rank has joined
  at::Tensor expected = at::zeros({6, 2}, at::kDouble);
  for (int r = 0; r < active; ++r) expected += sparse(r, 6).to_dense();
  EXPECT_TRUE(
      at::allclose(sparse_allreduce(sparse(rank(), 6), options).to_dense(), expected / active));
  EXPECT_TRUE(at::allclose(sparse_allreduce(sparse(rank(), 6)).to_dense(), expected / size()));
  if (size() > 1) join();
}

TEST_F(SparseTest, ProcessSet_CombinesItsOwnEntries) {
  if (size() == 1) GTEST_SKIP() << "a world of one rank has one process set";
  ProcessSet& set = runtime_.add_process_set({0, size() - 1});
  if (!set.included()) {
    EXPECT_THROW(sparse_allreduce(sparse(rank(), 6), {.process_set = &set}), InvalidArgument);
    return;
  }
  const at::Tensor expected = sparse(0, 6).to_dense() + sparse(size() - 1, 6).to_dense();
  EXPECT_TRUE(at::allclose(sparse_allreduce(sparse(rank(), 6), {.process_set = &set}).to_dense(),
                           expected / 2));
}

TEST_F(SparseTest, Errors_ReachAllRanks) {
  const auto refused = [&](const at::Tensor& wrong, const std::string& text) {
    expect_refused([&] { sparse_allreduce(is_last() ? wrong : sparse(rank(), 6)); }, text);
  };
  refused(own({6, 2}), "not a sparse COO tensor");
  refused(at::Tensor{}, "undefined");
  refused(sparse(rank(), 6, at::kInt), "plain Sum only");
  refused(sparse(rank(), 6).to(at::kComplexHalf), "ComplexHalf");
  expect_refused([&] { sparse_allreduce(sparse(rank(), 6), {.op = ReduceOp::Max}); }, "Max");
  expect_refused([&] { sparse_allreduce(sparse(rank(), 6), {.compression = Compression::fp16()}); },
                 "compression");
}

TEST_F(SparseTest, RanksThatDisagree_AreNamed) {
  if (size() == 1) GTEST_SKIP() << "one rank has nobody to disagree with";
  expect_refused<MismatchError>([&] { sparse_allreduce(sparse(rank(), is_last() ? 7 : 6)); },
                                "[7, 2] on rank " + std::to_string(size() - 1));
  expect_refused<MismatchError>(
      [&] {
        sparse_allreduce(sparse(rank(), 6), {.op = is_last() ? ReduceOp::Sum : ReduceOp::Average});
      },
      "reduction differs");
}

}  // namespace kolo::test::sparse_test

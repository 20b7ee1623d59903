// Tensors in memory that ranks share.
#include "kolo/torch/shared_tensor.hpp"

#include <cstdint>
#include <fstream>
#include <functional>
#include <string>

#include "support/becomes_true.hpp"
#include "support/mpi/variants.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test::shared_tensor_test {

const AlsoIn also_in({"alone", "messages", "nodes"});

class SharedTensorTest : public TrainingTest {
 protected:
  /// A shared tensor with `own` values.
  at::Tensor shared(const Shape& shape, at::ScalarType type = at::kFloat, int salt = 0) const {
    at::Tensor tensor = shared_empty(shape, at::TensorOptions(type));
    tensor.copy_(own(shape, type, salt));
    return tensor;
  }
  std::vector<int> everybody() { return runtime_.world().ranks(); }
  std::uint64_t bytes_packed() { return runtime_.world().metrics().bytes_packed; }
};

/// Whether `address` is mapped in this process.
bool is_mapped(const void* address) {
  std::ifstream maps("/proc/self/maps");
  const auto place = reinterpret_cast<std::uintptr_t>(address);
  for (std::string line; std::getline(maps, line);) {
    const std::size_t dash = line.find('-');
    const std::uintptr_t begin = std::stoull(line.substr(0, dash), nullptr, 16);
    const std::uintptr_t end = std::stoull(line.substr(dash + 1), nullptr, 16);
    if (begin <= place && place < end) return true;
  }
  return false;
}

TEST_F(SharedTensorTest, NewTensor_IsAnOrdinaryTensorOfZeros) {
  for (const at::ScalarType type : kNumbers) {
    const at::Tensor tensor = shared_empty({5, 3}, at::TensorOptions(type));
    expect_equal(tensor, at::zeros({5, 3}, type), c10::toString(type));
  }
  const at::Tensor parameter = shared_empty({2}, at::TensorOptions().requires_grad(true));
  EXPECT_TRUE(parameter.is_leaf() && parameter.requires_grad());
  parameter.mul(3).sum().backward();
  expect_equal(parameter.grad(), at::full({2}, 3.0f));
  EXPECT_EQ(shared_empty({}).dim(), 0);
  EXPECT_EQ(shared_empty({3, 0}).sizes(), at::IntArrayRef({3, 0}));
  EXPECT_THROW(shared_empty({4}).resize_({400}), c10::Error);
}

TEST_F(SharedTensorTest, Views_AreNotShared) {
  const bool can_share = size() > 1 && runtime_.config().shared_memory && cross_size() == 1;
  const at::Tensor tensor = shared_empty({6, 4});
  EXPECT_EQ(is_shared(tensor), can_share);
  EXPECT_EQ(is_shared(tensor.view({24})), can_share);
  EXPECT_EQ(is_shared(tensor.detach()), can_share);
  EXPECT_FALSE(is_shared(tensor.narrow(0, 0, 5)));
  EXPECT_FALSE(is_shared(tensor.narrow(0, 1, 5)));
  EXPECT_FALSE(is_shared(tensor.t()));
  EXPECT_FALSE(is_shared(tensor.clone()));
  EXPECT_FALSE(is_shared(at::zeros({6, 4})));
  EXPECT_FALSE(is_shared(at::Tensor()));
}

TEST_F(SharedTensorTest, Collectives_Work) {
  const std::uint64_t packed = bytes_packed();
  for (const at::ScalarType type : {at::kFloat, at::kLong, at::kBFloat16}) {
    const char* const what = c10::toString(type);
    const Shape shape{2 * size() + 1, 3};
    at::Tensor sum = shared(shape, type);
    allreduce_(sum, {.op = ReduceOp::Sum});
    expect_equal(sum, sum_of(everybody(), shape, type), what);

    at::Tensor sent = shared(shape, type, 1);
    broadcast_(sent, size() - 1);
    expect_equal(sent, values(size() - 1, shape, type, 1), what);

    const at::Tensor input = shared(shape, type, 2);
    const at::Tensor rows = reduce_scatter(input, {.op = ReduceOp::Sum});
    const std::int64_t begin = 2 * rank() + std::min(rank(), 1);
    expect_equal(rows,
                 sum_of(everybody(), shape, type, 2)
                     .narrow(0, begin, scattered_rows(shape[0], size(), rank())),
                 what);
    EXPECT_FALSE(is_shared(rows));
    expect_equal(input, own(shape, type, 2), what);

    std::vector<std::int64_t> splits(static_cast<std::size_t>(size()), 0);
    splits.back() = shape[0];  // all rows to the last rank
    const auto [output, received] = alltoall(input, splits);
    std::vector<at::Tensor> parts{at::empty({0, 3}, type)};
    for (const int from : everybody()) {
      EXPECT_EQ(received.at(static_cast<std::size_t>(from)), is_last() ? shape[0] : 0);
      if (is_last()) parts.push_back(values(from, shape, type, 2));
    }
    expect_equal(output, at::cat(parts), what);

    std::vector<at::Tensor> all;
    for (const int from : everybody()) all.push_back(values(from, shape, type, 2));
    expect_equal(allgather(input), at::cat(all), what);
  }
  EXPECT_EQ(bytes_packed(), packed);
}

TEST_F(SharedTensorTest, ViewsAndGroups_AreTreatedAsOrdinaryTensors) {
  at::Tensor tensor = shared({size() + 1, 4});
  // A different view on every rank: a row at its own offset.
  at::Tensor row = tensor.narrow(0, rank(), 1);
  const at::Tensor before = tensor.clone();
  at::Tensor expected = at::zeros({1, 4});
  for (const int r : everybody()) expected += values(r, {size() + 1, 4}).narrow(0, r, 1);
  allreduce_(row, {.op = ReduceOp::Sum});
  expect_equal(row, expected);
  before.narrow(0, rank(), 1).copy_(expected);
  expect_equal(tensor, before, "beside the row");

  at::Tensor first = shared({7}, at::kFloat, 1);
  at::Tensor second = own({3}, at::kFloat, 2);
  grouped_allreduce_({first, second}, {.op = ReduceOp::Sum});
  expect_equal(first, sum_of(everybody(), {7}, at::kFloat, 1));
  expect_equal(second, sum_of(everybody(), {3}, at::kFloat, 2));
}

TEST_F(SharedTensorTest, Gradients_FlowThrough) {
  at::Tensor weights = shared({size(), 2}).requires_grad_();
  const at::Tensor rows = reduce_scatter(weights, {.op = ReduceOp::Sum});
  (rows * (rank() + 1)).sum().backward();
  at::Tensor expected = at::empty({size(), 2});
  for (const int r : everybody()) expected[r] = static_cast<float>(size() * (r + 1));
  expect_equal(weights.grad(), expected);
}

TEST_F(SharedTensorTest, Memory_IsFreedWithTheLastTensor) {
  at::Tensor tensor = shared({1 << 16});
  const bool was_shared = is_shared(tensor);
  const void* const memory = tensor.data_ptr();
  TensorHandle handle = allreduce_async_(tensor, {.op = ReduceOp::Sum});
  at::Tensor part = tensor.narrow(0, 5, 3);
  tensor.reset();
  handle.wait();
  EXPECT_TRUE(is_mapped(memory));
  handle = {};
  EXPECT_TRUE(is_mapped(memory));
  expect_equal(part, sum_of(everybody(), {1 << 16}).narrow(0, 5, 3));
  part.reset();
  // The allocator decides what happens to private memory.
  if (was_shared) {
    EXPECT_TRUE(becomes_true(
        [&] { return !is_mapped(memory); }));  // a step of the engine may still hold it
  }
}

TEST_F(SharedTensorTest, OnlyOneRanksTensorIsShared_IsAMismatch) {
  if (size() == 1) GTEST_SKIP() << "one rank has nobody to disagree with";
  at::Tensor tensor = shared({4, 2});
  at::Tensor mine = is_last() ? own({4, 2}) : tensor;
  const std::vector<std::function<void()>> calls{
      [&] { allreduce_(mine); }, [&] { broadcast_(mine, 0); }, [&] { reduce_scatter(mine); },
      [&] {
        std::vector<std::int64_t> splits(static_cast<std::size_t>(size()), 0);
        splits.front() = 4;
        alltoall(mine, splits);
      }};
  for (const auto& call : calls) {
    const std::string text = text_thrown_by<MismatchError>(call);
    expect_contains(text, "shared-memory placement");
    expect_contains(text, "none on rank");
  }
  broadcast_(tensor, 0);
  expect_equal(tensor, values(0, {4, 2}));
}

TEST_F(SharedTensorTest, WhatCannotBeShared_IsAnErrorOnAllRanks) {
  const auto text_of = [&](const Shape& sizes, const at::TensorOptions& options) {
    return text_thrown_by<InvalidArgument>([&] {
      is_last() ? shared_empty(sizes, options, {.name = "x"})
                : shared_empty({8}, {}, {.name = "x"});
    });
  };
  expect_contains(text_of({2}, at::TensorOptions(at::kComplexHalf)), "are not supported");
  expect_contains(text_of({2}, at::TensorOptions(at::kMeta)), "not that of meta");
  expect_contains(text_of({2, -1}, {}), "a dimension of the tensor is negative");
  at::Tensor after = shared({3});
  allreduce_(after, {.op = ReduceOp::Sum});
  expect_equal(after, sum_of(everybody(), {3}));
}

}  // namespace kolo::test::shared_tensor_test

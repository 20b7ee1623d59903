// Asynchronous reductions of tensors, and their handles.
#include <chrono>
#include <string>
#include <vector>

#include "support/mpi/variants.hpp"
#include "torch/tensors/reductions_fixture.hpp"

namespace kolo::test::reductions_test {

const AlsoIn async_in({"alone"});

TEST_F(ReductionsTest, AsyncInPlaceForms_ReturnTheCallersTensors) {
  const AllreduceOptions options{.op = ReduceOp::Sum};
  at::Tensor whole = at::full({10}, -1.0f);
  at::Tensor every_other = whole.slice(0, 0, 10, 2);
  every_other.copy_(own({5}));
  const std::vector<at::Tensor> group{own({2, 3}).t(), own({4}, at::kLong)};
  TensorHandle handle = allreduce_async_(every_other, options);
  TensorsHandle of_group = grouped_allreduce_async_(group, options);
  EXPECT_TRUE(handle.result().is_same(every_other));
  expect_equal(whole.slice(0, 0, 10, 2), sum({5}));
  expect_equal(whole.slice(0, 1, 10, 2), at::full({5}, -1.0f));
  const std::vector<at::Tensor> results = of_group.result();
  ASSERT_EQ(results.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(results[i].is_same(group[i])) << i;
  expect_equal(group[0], sum({2, 3}).t());
  expect_equal(group[1], sum({4}, at::kLong));
}

TEST_F(ReductionsTest, EmptyGroup_IsReadyWhenAllHaveSubmittedIt) {
  EXPECT_TRUE(grouped_allreduce(std::vector<at::Tensor>{}).empty());
  EXPECT_TRUE(grouped_reduce_scatter(std::vector<at::Tensor>{}).empty());
}

TEST_F(ReductionsTest, DroppedHandles_KeepTheirTensorsAlive) {
  for (int i = 0; i < 20; ++i) {
    static_cast<void>(
        allreduce_async(at::full({100000}, 1.0 * i), {.name = "dropped" + std::to_string(i)}));
  }
  expect_equal(allreduce(own({1}), {.op = ReduceOp::Sum}), sum({1}));
}

TEST_F(ReductionsTest, Handles_WaitForATimeAndReturnTheirResultAgain) {
  const AllreduceOptions options{.op = ReduceOp::Sum, .name = "awaited"};
  at::Tensor whole = at::full({6}, -1.0f);
  at::Tensor every_other = whole.slice(0, 0, 6, 2);  // the waiting thread writes it back
  every_other.copy_(own({3}));
  TensorHandle handle;
  if (rank() == 0) {
    handle = allreduce_async_(every_other, options);
    EXPECT_TRUE(size() == 1 || !handle.wait_for(std::chrono::milliseconds(1)));
  }
  barrier();  // the other ranks submit later
  if (rank() != 0) handle = allreduce_async_(every_other, options);
  while (!handle.wait_for(std::chrono::milliseconds(20))) {
  }
  EXPECT_TRUE(handle.is_ready());
  expect_equal(whole.slice(0, 0, 6, 2), sum({3}));
  expect_equal(handle.result(), sum({3}));
  expect_equal(handle.result(), sum({3}));
  EXPECT_THROW(TensorHandle().wait(), InvalidArgument);
}

}  // namespace kolo::test::reductions_test

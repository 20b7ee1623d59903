// All-reduce and reduce-scatter on tensors.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "support/mpi/variants.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test::reductions_test {

class ReductionsTest : public TrainingTest {
 protected:
  using TrainingTest::TrainingTest;

  /// This rank's rows of a reduced tensor.
  at::Tensor rows_of(const at::Tensor& whole) const {
    std::int64_t first = 0;
    for (int r = 0; r < rank(); ++r) first += scattered_rows(whole.size(0), size(), r);
    return whole.narrow(0, first, scattered_rows(whole.size(0), size(), rank()));
  }
};

const AlsoIn also_in({"alone", "uneven", "groups"});

TEST_F(ReductionsTest, SumsOfEveryType_AreExact) {
  for (const at::ScalarType type : kNumbers) {
    const std::string name = c10::toString(type);
    const at::Tensor input = own({2, 3}, type);
    const at::Tensor kept = input.clone();
    expect_equal(allreduce(input, {.op = ReduceOp::Sum}), sum({2, 3}, type), name);
    expect_equal(reduce_scatter(input, {.op = ReduceOp::Sum}), rows_of(sum({2, 3}, type)), name);
    expect_equal(input, kept, name);
    at::Tensor changed = own({2, 3}, type);
    EXPECT_EQ(&allreduce_(changed, {.op = ReduceOp::Sum}), &changed);
    expect_equal(changed, sum({2, 3}, type), name);
  }
}

TEST_F(ReductionsTest, MaxOfBools_IsOr) {
  // Element i is true on rank i only, element `size` on no rank.
  const at::Tensor mine = at::arange(size() + 1) == rank();
  const at::Tensor any = at::arange(size() + 1) < size();
  expect_equal(allreduce(mine, {.op = ReduceOp::Max}), any);
  expect_equal(allreduce(mine.logical_not(), {.op = ReduceOp::Min}), any.logical_not());
  expect_equal(reduce_scatter(mine, {.op = ReduceOp::Max}), rows_of(any));
}

TEST_F(ReductionsTest, AnyStrides_AreReduced) {
  const AllreduceOptions options{.op = ReduceOp::Sum};
  const Shape shape{2, 3, 4, 5};
  const at::Tensor expected = sum(shape);
  const at::Tensor channels_last = own(shape).contiguous(at::MemoryFormat::ChannelsLast);
  expect_equal(allreduce(channels_last, options), expected);
  expect_equal(allreduce(own(shape).transpose(0, 2), options), expected.transpose(0, 2));
  expect_equal(reduce_scatter(own(shape).transpose(0, 2), options),
               rows_of(expected.transpose(0, 2)));
  // Strides may differ between ranks.
  expect_equal(allreduce(is_last() ? channels_last : own(shape), options), expected);
  expect_equal(allreduce(at::full({1}, rank(), at::kFloat).expand({3}), options),
               at::full({3}, size() * (size() - 1) / 2, at::kFloat));

  at::Tensor last = own(shape).contiguous(at::MemoryFormat::ChannelsLast);
  allreduce_(last, options);
  expect_equal(last, expected);
  EXPECT_TRUE(last.is_contiguous(at::MemoryFormat::ChannelsLast));
  at::Tensor whole = at::full({2, 6}, -1.0f);
  at::Tensor every_other = whole.slice(1, 0, 6, 2);
  every_other.copy_(own({2, 3}));
  allreduce_(every_other, options);
  expect_equal(whole.slice(1, 0, 6, 2), sum({2, 3}));
  expect_equal(whole.slice(1, 1, 6, 2), at::full({2, 3}, -1.0f));
}

TEST_F(ReductionsTest, ScalarsAndEmptyTensors_AreReduced) {
  expect_equal(allreduce(own({}), {.op = ReduceOp::Sum}), sum({}));
  expect_equal(allreduce(at::empty({0, 4})), at::empty({0, 4}));
  expect_equal(reduce_scatter(at::empty({size(), 0})), at::empty({1, 0}));
  expect_equal(reduce_scatter(at::empty({0, 4})), at::empty({0, 4}));
  at::Tensor nothing = at::empty({3, 0});
  expect_equal(allreduce_(nothing), at::empty({3, 0}));
}

/// Keeps the number of larger magnitude, with its sign.
void combine_magnitudes(DType, const void* next, void* accumulator, std::size_t count) {
  const auto* from = static_cast<const float*>(next);
  auto* to = static_cast<float*>(accumulator);
  for (std::size_t i = 0; i < count; ++i)
    to[i] = std::abs(from[i]) > std::abs(to[i]) ? from[i] : to[i];
}
void fill_zeros(DType, void* elements, std::size_t count) {
  std::fill_n(static_cast<float*>(elements), count, 0.0F);
}

class CustomReductionsTest : public ReductionsTest {
 protected:
  CustomReductionsTest() : ReductionsTest({{"magnitude", combine_magnitudes, fill_zeros}}) {}
};

TEST_F(CustomReductionsTest, CustomReduction_ReducesTensors) {
  const auto input = [](int r) { return values(r, {4, 3}) * (r % 2 == 0 ? 1 : -1); };
  at::Tensor largest = input(0);
  for (int r = 1; r < size(); ++r) {
    largest = at::where(input(r).abs() > largest.abs(), input(r), largest);
  }
  const AllreduceOptions options{.op = ReduceOp::Custom, .custom = "magnitude"};
  expect_equal(allreduce(input(rank()), options), largest);
  expect_equal(allreduce(input(rank()).t(), options), largest.t());
  expect_equal(grouped_allreduce({input(rank()), own({2})}, options)[0], largest);
  expect_equal(reduce_scatter(input(rank()), options), rows_of(largest));
  expect_refused([&] { allreduce(own({2}), {.op = ReduceOp::Custom, .custom = "median"}); },
                 "median");
}

TEST_F(ReductionsTest, GroupsOfSeveralTypesAndShapes_AreReduced) {
  const AllreduceOptions options{.op = ReduceOp::Sum};
  const std::vector<std::pair<Shape, at::ScalarType>> members{
      {{3, 4}, at::kFloat}, {{}, at::kLong}, {{0, 2}, at::kHalf}, {{5}, at::kFloat}};
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> rows;
  for (const auto& [shape, type] : members) {
    inputs.push_back(own(shape, type, static_cast<int>(inputs.size())));
    rows.push_back(own({size() + static_cast<int>(rows.size()), 2}, type));
  }
  inputs[0] = own({4, 3}).t();
  const auto expected = [&](std::size_t i) {
    return i == 0 ? sum({4, 3}).t() : sum(members[i].first, members[i].second, static_cast<int>(i));
  };
  TensorsHandle handle = grouped_allreduce_async(inputs, options);
  const std::vector<at::Tensor> outputs = grouped_allreduce(inputs, options);
  const std::vector<at::Tensor> own_rows = grouped_reduce_scatter(rows, options);
  const std::vector<at::Tensor> of_handle = handle.result();
  EXPECT_TRUE(handle.is_ready());
  grouped_allreduce_(inputs, options);
  for (std::size_t i = 0; i < members.size(); ++i) {
    const std::string what = "tensor " + std::to_string(i);
    expect_equal(outputs[i], expected(i), what);
    expect_equal(of_handle[i], expected(i), what);
    expect_equal(inputs[i], expected(i), what);
    expect_equal(own_rows[i], rows_of(sum(rows[i].sizes().vec(), members[i].second)), what);
  }
}

TEST_F(ReductionsTest, Compression_ShortensFloatsOfMoreThan16BitsOnly) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    // The 13th fractional bit does not fit half precision or bfloat16.
    const at::Tensor mine = own({9}, type) + 1 + 0x1p-13;
    const at::Tensor rounded = sum({9}, type) + size();
    for (const Compression& compression : {Compression::fp16(), Compression::bf16()}) {
      const AllreduceOptions options{.op = ReduceOp::Sum, .compression = compression};
      expect_equal(allreduce(mine, options), rounded);
      expect_equal(reduce_scatter(mine, options), rows_of(rounded));
    }
  }
  const at::Tensor integers = own({9}, at::kInt) + 100'001;
  expect_equal(allreduce(integers, {.op = ReduceOp::Sum, .compression = Compression::fp16()}),
               sum({9}, at::kInt) + 100'001 * size());
}

// --- asynchronous reductions, and their handles ---

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

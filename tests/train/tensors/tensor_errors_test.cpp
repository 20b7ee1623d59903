// A tensor that no collective accepts, on one rank, is an error on all ranks, and Kolo works
// afterwards.
#include "train/training_fixture.hpp"

namespace kolo::test::tensor_errors_test {

class TensorErrorsTest : public TrainingTest {
 protected:
  /// `wrong` on the last rank, a good tensor elsewhere.
  at::Tensor wrong_on_last(const at::Tensor& wrong) const { return is_last() ? wrong : own({4}); }
  std::string last() const { return "rank " + std::to_string(size() - 1); }
};

TEST_F(TensorErrorsTest, UnsupportedTensors_AreRefusedOnAllRanks) {
  const std::vector<std::pair<at::Tensor, std::string>> cases{
      {at::Tensor{}, "the tensor is undefined"},
      {at::zeros({4}, at::kComplexHalf), "tensors of type ComplexHalf"},
      {at::zeros({4}).to_sparse(), "sparse tensors are not supported"},
      {at::empty({4}, at::kMeta), "the tensor lies on meta"},
  };
  for (const auto& [wrong, text] : cases) {
    at::Tensor tensor = wrong_on_last(wrong);
    const std::string expected = last() + ": " + text;
    expect_refused([&] { allreduce(tensor, {.name = "x"}); }, expected);
    expect_refused([&] { allreduce_(tensor, {.name = "x"}); }, expected);
    expect_refused([&] { reduce_scatter(tensor, {.name = "x"}); }, expected);
    expect_refused([&] { allgather(tensor, {.name = "x"}); }, expected);
    expect_refused([&] { broadcast(tensor, 0, {.name = "x"}); }, expected);
    expect_refused([&] { broadcast_(tensor, 0); }, expected);
    std::vector<std::int64_t> splits(static_cast<std::size_t>(size()), 0);
    splits[0] = 4;
    expect_refused([&] { alltoall(tensor, splits); }, expected);
    expect_refused([&] { grouped_allreduce({own({2}), tensor}); }, "tensor 1: " + text);
    expect_refused([&] { grouped_allgather({own({2}), tensor}); }, "tensor 1: " + text);
  }
}

TEST_F(TensorErrorsTest, Handles_ThrowTheError) {
  TensorHandle handle = allreduce_async(wrong_on_last(at::Tensor{}), {.name = "async"});
  expect_refused([&] { handle.wait(); }, "allreduce 'async'");
  EXPECT_TRUE(handle.is_ready());
  EXPECT_THROW(handle.result(), InvalidArgument);
}

TEST_F(TensorErrorsTest, UnsupportedArguments_AreRefused) {
  expect_refused([&] { allgather(is_last() ? own({}) : own({2})); }, "a scalar has no rows");
  expect_refused([&] { alltoall(is_last() ? own({}) : own({size()})); }, "a scalar has no rows");
  expect_refused([&] { reduce_scatter(is_last() ? own({}) : own({2})); },
                 "a scalar has no rows to scatter");
  expect_refused([&] { reduce_scatter(own({2}), {.op = ReduceOp::Adasum}); },
                 "cannot be scattered");
  expect_refused([&] { allreduce(at::zeros({2}, at::kBool)); }, "bool");
  expect_refused([&] { broadcast(own({2}), is_last() ? size() : 0, {.name = "x"}); },
                 "root rank " + std::to_string(size()));
}

TEST_F(TensorErrorsTest, WrongSplits_AreRefused) {
  const std::size_t ranks = static_cast<std::size_t>(size());
  const std::vector<std::int64_t> good(ranks, 1);
  const auto refused = [&](std::vector<std::int64_t> wrong, const std::string& text) {
    expect_refused([&] { alltoall(own({size()}), is_last() ? wrong : good); },
                   last() + ": " + text);
  };
  refused(std::vector<std::int64_t>(ranks + 1, 1), "there are");
  refused(std::vector<std::int64_t>(ranks, 2), "the splits add up to");
  std::vector<std::int64_t> negative = good;
  negative[0] = -1;
  refused(negative, "a split is negative");
  if (size() > 1) {
    expect_refused([&] { alltoall(own({is_last() ? size() + 1 : size()})); },
                   "do not divide evenly");
  }
}

TEST_F(TensorErrorsTest, OverlappingMemory_IsReadButNotWritten) {
  at::Tensor overlapping = own({1}).expand({4});
  expect_equal(allreduce(overlapping, {.op = ReduceOp::Sum}), sum({1}).expand({4}));
  at::Tensor tensor = wrong_on_last(overlapping);
  expect_refused([&] { allreduce_(tensor); }, last() + ": elements of the tensor share memory");
  expect_refused([&] { grouped_broadcast_({tensor}, 0); }, "share memory");
  // If it fails on every rank, no tensor has changed.
  expect_equal(tensor, wrong_on_last(own({1}).expand({4})));
}

TEST_F(TensorErrorsTest, RanksThatDisagree_AreNamed) {
  if (size() == 1) GTEST_SKIP() << "one rank has nobody to disagree with";
  const at::Tensor longer = is_last() ? own({5}) : own({4});
  const at::Tensor wide = is_last() ? own({2, 3}) : own({2, 4});
  const at::Tensor integer = is_last() ? own({4}, at::kInt) : own({4});
  expect_refused<MismatchError>([&] { allreduce(longer); }, "[5] on " + last());
  expect_refused<MismatchError>([&] { grouped_allreduce({own({2}), integer}); },
                                "dtype of tensor 1");
  expect_refused<MismatchError>([&] { reduce_scatter(longer); }, "[5] on " + last());
  expect_refused<MismatchError>([&] { allgather(wide); }, "shape differs: [4] on");
  std::vector<std::int64_t> splits(static_cast<std::size_t>(size()), 0);
  splits[0] = 4;
  expect_refused<MismatchError>([&] { alltoall(integer, splits); }, "int32 on " + last());
  expect_refused<MismatchError>([&] { broadcast(own({2}), rank() == 0 ? 0 : 1); }, "root rank");
}

TEST_F(TensorErrorsTest, NamesInFlight_AreRefused) {
  if (size() == 1) GTEST_SKIP() << "what one rank starts may have ended at once";
  const AllreduceOptions options{.op = ReduceOp::Sum, .name = "twice"};
  TensorHandle first;
  if (rank() == 0) {
    first = allreduce_async(own({3}), options);
    const OperationOptions same_name{.name = "twice"};
    const auto refused = [](auto call) {
      expect_contains(text_thrown_by<InvalidArgument>(call), "'twice'");
    };
    refused([&] { allreduce(own({3}), options); });
    refused([&] { reduce_scatter(own({3}), options); });
    refused([&] { grouped_allreduce({own({3})}, options); });
    refused([&] { allgather(own({3}), {.name = "twice"}); });
    refused([&] { broadcast(own({3}), 0, same_name); });
    refused([&] { alltoall(own({size()}), {}, same_name); });
    refused([&] { barrier(same_name); });
  }
  barrier();  // the other ranks submit later
  if (rank() != 0) first = allreduce_async(own({3}), options);
  expect_equal(first.result(), sum({3}));
}

}  // namespace kolo::test::tensor_errors_test

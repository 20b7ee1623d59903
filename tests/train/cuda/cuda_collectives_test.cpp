// Collectives on CUDA tensors, on the fake GPU: order of work, and no blocked hosts.
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include "kolo/error.hpp"
#include "kolo/torch/tensor_collectives.hpp"
#include "support/errors.hpp"
#include "train/cuda/fake_cuda_fixture.hpp"
#include "train/cuda/rank_values.hpp"

namespace kolo::test::cuda_collectives_test {

class CudaCollectivesTest : public testing::TestWithParam<int> {
 protected:
  static void on_ranks(const std::function<void(CudaRank&)>& body) {
    run_cuda_ranks(GetParam(), body);
  }
  static AllreduceOptions sum(const CudaRank& rank) {
    AllreduceOptions options;
    options.op = ReduceOp::Sum;
    options.process_set = &rank.world();
    return options;
  }
  static OperationOptions here(const CudaRank& rank) {
    OperationOptions options;
    options.process_set = &rank.world();
    return options;
  }
};

INSTANTIATE_TEST_SUITE_P(Ranks, CudaCollectivesTest, testing::Values(1, 2, 3, 4));

TEST_P(CudaCollectivesTest, Results_AreReadyForKernelsAfterWait) {
  on_ranks([](CudaRank& rank) {
    at::Tensor tensor = values(rank, 5, rank.rank());
    TensorHandle handle = allreduce_async(tensor, sum(rank));
    const at::Tensor busy = at::ones({64}, rank.options()).mul(2.0);  // keeps running meanwhile
    const at::Tensor twice = handle.result().mul(2.0);
    allreduce_(tensor, sum(rank));
    EXPECT_EQ(rank.host_syncs(), 0);
    expect_same(twice, sum_of_values(rank, 5).mul(2.0));
    expect_same(tensor, sum_of_values(rank, 5));
    expect_same(busy, at::full({64}, 2.0, rank.options()));
  });
}

TEST_P(CudaCollectivesTest, StreamsAtTheCallAndAtTheWait_AreOrdered) {
  on_ranks([](CudaRank& rank) {
    const c10::Stream maker = new_stream(rank);
    const c10::Stream user = new_stream(rank);
    TensorHandle handle;
    {
      const c10::StreamGuard guard(maker);
      handle = allreduce_async(values(rank, 7, rank.rank()), sum(rank));
    }
    const c10::StreamGuard guard(user);
    const at::Tensor result = handle.result();
    const at::Tensor copy = result.mul(1.0);
    EXPECT_EQ(rank.host_syncs(), 0);
    expect_same(copy, sum_of_values(rank, 7));
    // The result's memory belongs to the stream on which it was allocated, and its owner decides
    // when to reuse it.
    c10::Event used(c10::kCUDA);
    used.record(user);
    used.block(maker);
  });
}

TEST_P(CudaCollectivesTest, NonContiguousTensors_AreWrittenInPlace) {
  on_ranks([](CudaRank& rank) {
    const at::Tensor whole = values(rank, 6, rank.rank());
    at::Tensor columns = whole.t();
    allreduce_(columns, sum(rank));
    EXPECT_EQ(rank.host_syncs(), 0);
    expect_same(whole, sum_of_values(rank, 6));
  });
}

TEST_P(CudaCollectivesTest, GroupsOfSeveralTypes_AreReduced) {
  on_ranks([](CudaRank& rank) {
    const std::vector<at::Tensor> tensors{
        values(rank, 3, rank.rank()), values(rank, 2, rank.rank()).to(at::kLong),
        at::full({}, 1.0 + rank.rank(), rank.options(at::kDouble)),
        at::zeros({0, 4}, rank.options())};
    const std::vector<at::Tensor> sums = grouped_allreduce(tensors, sum(rank));
    expect_same(sums[0], sum_of_values(rank, 3));
    expect_same(sums[1], sum_of_values(rank, 2).to(at::kLong));
    const int n = rank.size();
    EXPECT_EQ(sums[2].item<double>(), n * (n + 1) / 2.0);
    EXPECT_EQ(sums[3].sizes(), at::IntArrayRef({0, 4}));
  });
}

TEST_P(CudaCollectivesTest, Compression_SendsSixteenBits) {
  on_ranks([](CudaRank& rank) {
    AllreduceOptions options = sum(rank);
    options.compression = Compression::fp16();
    expect_same(allreduce(values(rank, 4, rank.rank()), options), sum_of_values(rank, 4));
  });
}

TEST_P(CudaCollectivesTest, ReduceScatter_GivesEachRankItsRows) {
  on_ranks([](CudaRank& rank) {
    const std::int64_t rows = rank.size() + 2;
    const at::Tensor own = reduce_scatter(values(rank, rows, rank.rank()), sum(rank));
    EXPECT_EQ(rank.host_syncs(), 0);
    std::int64_t first = 0;
    for (int other = 0; other < rank.rank(); ++other) {
      first += scattered_rows(rows, rank.size(), other);
    }
    expect_same(
        own,
        sum_of_values(rank, rows).narrow(0, first, scattered_rows(rows, rank.size(), rank.rank())));
  });
}

TEST_P(CudaCollectivesTest, UnevenRows_AreGatheredInMemoryOfTheCallersStream) {
  on_ranks([](CudaRank& rank) {
    const c10::Stream stream = new_stream(rank);
    const c10::StreamGuard guard(stream);
    TensorHandle handle =
        allgather_async(values(rank, rank.rank() + 1, rank.rank()), {.process_set = &rank.world()});
    // Allocates and frees memory, which may overlap the gathered rows.
    for (int i = 0; i < 4; ++i) at::ones({64}, rank.options()).mul_(3.0);
    const at::Tensor all = handle.result().mul(1.0);
    EXPECT_EQ(rank.host_syncs(), 0);
    std::int64_t first = 0;
    for (int other = 0; other < rank.size(); ++other) {
      expect_same(all.narrow(0, first, other + 1), values(rank, other + 1, other));
      first += other + 1;
    }
    EXPECT_EQ(all.size(0), first);
  });
}

TEST_P(CudaCollectivesTest, Alltoall_SendsEachRankItsRows) {
  on_ranks([](CudaRank& rank) {
    std::vector<std::int64_t> splits;
    for (int other = 0; other < rank.size(); ++other) splits.push_back(other);
    const std::int64_t rows = rank.size() * (rank.size() - 1) / 2;
    const AlltoallResult got = alltoall(values(rank, rows, rank.rank()), splits, here(rank));
    EXPECT_EQ(rank.host_syncs(), 0);
    const std::int64_t own = rank.rank();
    EXPECT_EQ(got.received_splits,
              std::vector<std::int64_t>(static_cast<std::size_t>(rank.size()), own));
    for (int other = 0; other < rank.size(); ++other) {
      expect_same(got.output.narrow(0, other * own, own),
                  values(rank, rows, other).narrow(0, own * (own - 1) / 2, own));
    }
  });
}

TEST_P(CudaCollectivesTest, Broadcast_CopiesTheRootsTensor) {
  on_ranks([](CudaRank& rank) {
    const int root = rank.size() - 1;
    at::Tensor tensor = values(rank, 3, rank.rank());
    const at::Tensor copy = broadcast(tensor, root, here(rank));
    broadcast_(tensor, root, here(rank));
    EXPECT_EQ(rank.host_syncs(), 0);
    expect_same(copy, values(rank, 3, root));
    expect_same(tensor, values(rank, 3, root));
  });
}

TEST_P(CudaCollectivesTest, GradientsOfOperations_AreOperations) {
  on_ranks([](CudaRank& rank) {
    const at::Tensor input = values(rank, 2, rank.rank()).requires_grad_();
    const at::Tensor result = allreduce(input, sum(rank));
    result.mul(1.0 + rank.rank()).sum().backward();
    const int n = rank.size();
    expect_same(input.grad(), at::full({2, 3}, n * (n + 1) / 2.0, rank.options()));
  });
}

TEST_P(CudaCollectivesTest, GroupOnTwoDevices_IsRefused) {
  on_ranks([](CudaRank& rank) {
    std::vector<at::Tensor> tensors{at::ones({2}, rank.options()), at::ones({2})};
    expect_contains(text_thrown_by<InvalidArgument>([&] { grouped_allreduce(tensors, sum(rank)); }),
                    "are on different devices");
    expect_same(allreduce(tensors.front(), sum(rank)),
                at::full({2}, static_cast<double>(rank.size()), rank.options()));
  });
}

TEST(CudaMismatchTest, RanksOnCpuAndGpu_Disagree) {
  run_cuda_ranks(3, [](CudaRank& rank) {
    const at::Tensor tensor =
        at::ones({2}, rank.rank() == 0 ? at::TensorOptions(at::kFloat) : rank.options());
    EXPECT_THROW(allreduce(tensor, {.process_set = &rank.world()}), MismatchError);
  });
}

}  // namespace kolo::test::cuda_collectives_test

// The c10d backend on CUDA tensors, on the fake GPU: results, order of work, no blocked hosts.
#include <chrono>
#include <cstdint>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "kolo/error.hpp"
#include "kolo/extras/c10d_backend.hpp"
#include "support/errors.hpp"
#include "train/cuda/fake_cuda_fixture.hpp"
#include "train/cuda/rank_values.hpp"

namespace kolo::test::cuda_c10d_test {

using Tensors = std::vector<at::Tensor>;
using BackendPointer = c10::intrusive_ptr<c10d::Backend>;

class CudaC10dTest : public testing::TestWithParam<int> {
 protected:
  static void on_ranks(const std::function<void(CudaRank&, c10d::Backend&)>& body) {
    for (const std::string& hazard : hazards_of(body)) ADD_FAILURE() << hazard;
  }
  static std::vector<std::string> hazards_of(
      const std::function<void(CudaRank&, c10d::Backend&)>& body) {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    return hazards_of_cuda_ranks(cuda_setting(GetParam()), [&](CudaRank& rank) {
      std::vector<int> all(static_cast<std::size_t>(rank.size()));
      std::iota(all.begin(), all.end(), 0);
      const BackendPointer group =
          extras::make_c10d_backend(rank.runtime(), store, all, std::chrono::seconds(60));
      body(rank, *group);
      group->shutdown();
    });
  }
};

INSTANTIATE_TEST_SUITE_P(Ranks, CudaC10dTest, testing::Values(1, 2, 3));

TEST_P(CudaC10dTest, ResultsAreReadyForKernelsAfterWait) {
  on_ranks([](CudaRank& rank, c10d::Backend& group) {
    Tensors tensors{values(rank, 5, rank.rank())};
    const auto work = group.allreduce(tensors);
    const at::Tensor busy = at::ones({64}, rank.options()).mul(2.0);  // keeps running meanwhile
    const c10::Stream user = new_stream(rank);
    const c10::StreamGuard guard(user);
    work->wait();
    const at::Tensor twice = tensors[0].mul(2.0);
    EXPECT_EQ(rank.host_syncs(), 0);
    expect_same(twice, sum_of_values(rank, 5).mul(2.0));
    while (!work->isCompleted()) std::this_thread::yield();
  });
}

TEST_P(CudaC10dTest, FuturesOrderStreams) {
  on_ranks([](CudaRank& rank, c10d::Backend& group) {
    Tensors tensors{values(rank, 4, rank.rank()).t()};  // copied in and out
    const auto future = group.allreduce(tensors)->getFuture();
    const auto twice = future->then(
        [](c10::ivalue::Future& reduced) {
          return c10::IValue(reduced.value().toTensorVector().front().mul(2.0));
        },
        c10::TensorType::get());
    twice->waitAndThrow();
    const at::Tensor result = twice->value().toTensor().add(1.0);
    EXPECT_EQ(rank.host_syncs(), 0);
    expect_same(result, sum_of_values(rank, 4).t().mul(2.0).add(1.0));
  });
}

/// Where the program's stream is, where the collective begins, and where it ends.
TEST_P(CudaC10dTest, AnOperationRecordsThreeEvents) {
  on_ranks([](CudaRank& rank, c10d::Backend& group) {
    Tensors tensors{values(rank, 5, rank.rank())};
    group.allreduce(tensors)->wait();  // makes the set's stream and connects
    const FakeGpuHub::Calls before = rank.calls();
    group.allreduce(tensors)->wait();
    const FakeGpuHub::Calls after = rank.calls();
    EXPECT_EQ(after.records - before.records, 3);
    EXPECT_EQ(after.waits - before.waits, 2);
    EXPECT_EQ(after.launches - before.launches, 1);
    EXPECT_EQ(after.kernels - before.kernels, 0);
  });
}

/// They order the streams of those who wait for them.
TEST_P(CudaC10dTest, FuturesDoNotHoldUpTheProgramsKernels) {
  const std::vector<std::string> hazards = hazards_of([](CudaRank& rank, c10d::Backend& group) {
    Tensors tensors{values(rank, 5, rank.rank())};
    const auto work = group.allreduce(tensors);
    const auto future = work->getFuture();
    while (!future->completed()) std::this_thread::yield();
    const at::Tensor unordered = tensors[0].mul(2.0);
    work->wait();
    rank.await_released_batches();
  });
  EXPECT_FALSE(hazards.empty());
}

TEST_P(CudaC10dTest, EveryCollectiveMovesGpuMemory) {
  on_ranks([](CudaRank& rank, c10d::Backend& group) {
    const int size = rank.size();
    const int root = size - 1;
    Tensors whole{values(rank, 4, rank.rank()).t()};
    group.broadcast(whole, {.rootRank = root})->wait();
    expect_same(whole[0], values(rank, 4, root).t());

    Tensors input{values(rank, 2, rank.rank())};
    std::vector<Tensors> lists(1);
    Tensors expected;
    for (int other = 0; other < size; ++other) {
      lists[0].push_back(at::empty({2, 3}, rank.options()));
      expected.push_back(values(rank, 2, other));
    }
    group.allgather(lists, input)->wait();
    for (int other = 0; other < size; ++other) {
      expect_same(lists[0][static_cast<std::size_t>(other)], values(rank, 2, other));
    }

    at::Tensor gathered = at::empty({2 * size, 3}, rank.options());
    at::Tensor strided = input[0].t().contiguous().t();
    group._allgather_base(gathered, strided)->wait();
    expect_same(gathered, at::cat(expected));

    at::Tensor summands = values(rank, size, rank.rank());
    at::Tensor own = at::empty({1, 3}, rank.options());
    group._reduce_scatter_base(own, summands)->wait();
    expect_same(own, sum_of_values(rank, size).narrow(0, rank.rank(), 1));

    Tensors reduced{values(rank, 3, rank.rank())};
    group.reduce(reduced, {.rootRank = root})->wait();
    expect_same(reduced[0],
                rank.rank() == root ? sum_of_values(rank, 3) : values(rank, 3, rank.rank()));

    at::Tensor received = at::empty({size, 3}, rank.options());
    std::vector<std::int64_t> even;
    group.alltoall_base(received, summands, even, even)->wait();
    for (int other = 0; other < size; ++other) {
      expect_same(received.narrow(0, other, 1),
                  values(rank, size, other).narrow(0, rank.rank(), 1));
    }
  });
}

TEST_P(CudaC10dTest, CoalescedCallsTakeAnyStrides) {
  on_ranks([](CudaRank& rank, c10d::Backend& group) {
    const int size = rank.size();
    Tensors inputs;
    Tensors outputs;
    for (const std::int64_t columns : {2, 4}) {
      inputs.push_back(values(rank, columns * size, rank.rank()).t());
      outputs.push_back(at::empty({columns, 3}, rank.options()).t());
    }
    group.reduce_scatter_tensor_coalesced(outputs, inputs)->wait();
    EXPECT_EQ(rank.calls().launches, 1);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const at::Tensor sum =
          sum_of_values(rank, inputs[i].size(1)).t().contiguous().view({size, -1});
      expect_same(outputs[i].contiguous().view({-1}), sum[rank.rank()]);
    }
    Tensors wholes;
    for (const at::Tensor& output : outputs) {
      wholes.push_back(at::empty({output.size(1) * size, 3}, rank.options()).t());
    }
    group.allgather_into_tensor_coalesced(wholes, outputs)->wait();
    EXPECT_EQ(rank.calls().launches, 2);
    for (std::size_t i = 0; i < wholes.size(); ++i) {
      expect_same(wholes[i].contiguous(), sum_of_values(rank, inputs[i].size(1)).t());
    }
  });
}

TEST_P(CudaC10dTest, FutureOfAWaitedWorkIsCompleted) {
  on_ranks([](CudaRank& rank, c10d::Backend& group) {
    Tensors tensors{values(rank, 4, rank.rank())};
    const auto work = group.allreduce(tensors);
    work->wait();
    const auto future = work->getFuture();
    ASSERT_TRUE(future->completed());
    expect_same(future->value().toTensorVector().front(), sum_of_values(rank, 4));
  });
}

TEST_P(CudaC10dTest, CoalescedWorksEndTogether) {
  on_ranks([](CudaRank& rank, c10d::Backend& group) {
    Tensors first{values(rank, 3, rank.rank())};
    Tensors second{values(rank, 5, rank.rank()).t()};
    group.startCoalescing();
    group.barrier({});
    group.allreduce(first);
    group.allreduce(second);
    group.endCoalescing()->wait();
    const at::Tensor result = second[0].add(1.0);
    EXPECT_EQ(rank.host_syncs(), 0);
    expect_same(first[0], sum_of_values(rank, 3));
    expect_same(result, sum_of_values(rank, 5).t().add(1.0));
  });
}

// Memory that the program's stream may use again, while the operation's still reads it.
TEST_P(CudaC10dTest, MemoryOutlivesAWaitOnAnotherStream) {
  on_ranks([](CudaRank& rank, c10d::Backend& group) {
    const int size = rank.size();
    Tensors own{at::empty({2, 3}, rank.options())};
    std::vector<Tensors> summands(1);
    for (int i = 0; i < size; ++i) {
      summands[0].push_back(values(rank, size, rank.rank()).narrow(0, i, 1).expand({2, 3}));
    }
    auto work = group.reduce_scatter(own, summands);
    const c10::Stream user = new_stream(rank);
    {
      const c10::StreamGuard guard(user);
      work->wait();
    }
    work.reset();
    EXPECT_EQ(rank.host_syncs(), 0);
    const c10::StreamGuard guard(user);
    expect_same(own[0], sum_of_values(rank, size).narrow(0, rank.rank(), 1).expand({2, 3}));
  });
}

TEST_P(CudaC10dTest, GatheredTensorsAreReadyForKernelsAfterWait) {
  on_ranks([](CudaRank& rank, c10d::Backend& group) {
    Tensors input{values(rank, 2, rank.rank())};
    std::vector<Tensors> outputs;
    if (rank.rank() == 0) {
      outputs.emplace_back();
      for (int i = 0; i < rank.size(); ++i) outputs[0].push_back(at::zeros({2, 3}, rank.options()));
    }
    const auto work = group.gather(outputs, input, {.rootRank = 0});
    const c10::Stream user = new_stream(rank);
    const c10::StreamGuard guard(user);
    work->wait();
    if (rank.rank() != 0) return;
    for (int other = 0; other < rank.size(); ++other) {
      const at::Tensor twice = outputs[0][static_cast<std::size_t>(other)].mul(2.0);
      expect_same(twice, values(rank, 2, other).mul(2.0));
    }
  });
}

TEST_P(CudaC10dTest, MessagesPassThroughTheCpu) {
  on_ranks([](CudaRank& rank, c10d::Backend& group) {
    const int size = rank.size();
    const int next = (rank.rank() + 1) % size;
    const int previous = (rank.rank() + size - 1) % size;
    Tensors sent{values(rank, 4, rank.rank()).t()};
    Tensors received{at::zeros({4, 3}, rank.options()).t()};
    const auto send = group.send(sent, next, 7);
    group.recv(received, previous, 7)->wait();
    send->wait();
    expect_same(received[0], values(rank, 4, previous).t());

    Tensors input{values(rank, 2, rank.rank())};
    std::vector<Tensors> outputs;
    if (rank.rank() == 0) {
      outputs.emplace_back();
      for (int i = 0; i < size; ++i) outputs[0].push_back(at::zeros({2, 3}, rank.options()));
    }
    group.gather(outputs, input, {.rootRank = 0})->wait();
    if (rank.rank() == 0) {
      for (int other = 0; other < size; ++other) {
        expect_same(outputs[0][static_cast<std::size_t>(other)], values(rank, 2, other));
      }
    }
  });
}

TEST_P(CudaC10dTest, TensorsOfTwoDevicesAreRefused) {
  on_ranks([](CudaRank& rank, c10d::Backend& group) {
    at::Tensor input = at::ones({2}, rank.options());
    at::Tensor output = at::ones({2 * rank.size()});
    expect_contains(text_thrown_by<InvalidArgument>([&] { group._allgather_base(output, input); }),
                    "All must be on one device");
    Tensors tensors{input};
    group.allreduce(tensors)->wait();
    expect_same(tensors[0], at::full({2}, static_cast<double>(rank.size()), rank.options()));
  });
}

}  // namespace kolo::test::cuda_c10d_test

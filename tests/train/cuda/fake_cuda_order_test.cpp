// Which work the fake CUDA back end considers ordered.
#include <optional>
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "train/cuda/fake_cuda_fixture.hpp"

namespace kolo::test::fake_cuda_order_test {

c10::Stream other_stream(const CudaRank& rank) {
  return c10::impl::VirtualGuardImpl(c10::kCUDA).getNewStream(rank.device());
}

/// Makes `later` wait for the work that is on `earlier` now.
void order(const c10::Stream& earlier, const c10::Stream& later) {
  c10::Event event(c10::kCUDA);
  event.record(earlier);
  event.block(later);
}

std::vector<std::string> hazards_of(const std::function<void(CudaRank&)>& body) {
  return hazards_of_cuda_ranks(cuda_setting(1), body);
}

void expect_hazard(const std::vector<std::string>& hazards, const std::string& part) {
  ASSERT_FALSE(hazards.empty());
  expect_contains(hazards.front(), part);
}

TEST(CudaOrderTest, AnotherStream_MustWait) {
  for (const bool waits : {false, true}) {
    const auto hazards = hazards_of([&](CudaRank& rank) {
      const c10::Stream own = current_cuda_stream(rank.device());
      const c10::Stream other = other_stream(rank);
      EXPECT_EQ(other.native_handle(), native_stream(other));
      at::Tensor x = at::ones({5}, rank.options());
      if (waits) order(own, other);
      {
        const c10::StreamGuard guard(other);
        EXPECT_EQ(rank.stream(), native_stream(other));
        x.add_(1);
      }
      if (waits) order(other, own);
      EXPECT_TRUE(at::equal(x.cpu(), at::full({5}, 2.0F)));
    });
    if (waits) {
      EXPECT_EQ(hazards, std::vector<std::string>());
    } else {
      expect_hazard(hazards, "'aten::add'");
    }
  }
}

TEST(CudaOrderTest, InterleavedElements_AreNoHazard) {
  run_cuda_ranks(1, [&](CudaRank& rank) {
    const c10::Stream own = current_cuda_stream(rank.device());
    const c10::Stream other = other_stream(rank);
    const at::Tensor x = at::zeros({6, 4}, rank.options());
    order(own, other);
    x.select(1, 0).add_(1);
    {
      const c10::StreamGuard guard(other);
      x.select(1, 1).add_(2);
    }
    order(other, own);
    EXPECT_EQ(x.sum().item<float>(), 18.0F);
  });
}

TEST(CudaOrderTest, ConcurrentKernels_AreNotOrdered) {
  // The value is correct, but its reader has not waited for it.
  expect_hazard(hazards_of([&](CudaRank& rank) {
                  at::Tensor x = at::ones({5}, rank.options());
                  x.add_(1);
                  const c10::StreamGuard guard(other_stream(rank));
                  EXPECT_EQ(x.sum().item<float>(), 10.0F);
                }),
                "'aten::sum' (rank 0, stream");
}

TEST(CudaOrderTest, RunningStatistics_CountAsWritten) {
  expect_hazard(hazards_of([&](CudaRank& rank) {
                  const at::Tensor x = at::ones({4, 2}, rank.options());
                  const at::Tensor mean = at::zeros({2}, rank.options());
                  const at::Tensor variance = at::ones({2}, rank.options());
                  const c10::Stream other = other_stream(rank);
                  order(current_cuda_stream(rank.device()), other);
                  at::native_batch_norm(x, {}, {}, mean, variance, true, 0.1, 1e-5);
                  const c10::StreamGuard guard(other);
                  mean.clone();
                }),
                "'aten::native_batch_norm'");
}

TEST(CudaOrderTest, HostWait_OrdersEverything) {
  run_cuda_ranks(1, [&](CudaRank& rank) {
    at::Tensor x = at::ones({5}, rank.options());
    c10::impl::VirtualGuardImpl(c10::kCUDA).synchronizeStream(current_cuda_stream(rank.device()));
    const c10::StreamGuard guard(other_stream(rank));
    x.add_(1);
    c10::impl::VirtualGuardImpl(c10::kCUDA).synchronizeDevice(rank.device().index());
  });
}

TEST(CudaOrderTest, Memory_IsFreedOnTheStreamOfItsAllocation) {
  enum class Ordering { None, Wait, RecordStream };
  for (const Ordering ordering : {Ordering::None, Ordering::Wait, Ordering::RecordStream}) {
    const auto hazards = hazards_of([&](CudaRank& rank) {
      const c10::Stream own = current_cuda_stream(rank.device());
      const c10::Stream other = other_stream(rank);
      at::Tensor result = at::zeros({5}, rank.options());
      at::Tensor x = at::ones({5}, rank.options());
      order(own, other);
      {
        const c10::StreamGuard guard(other);
        result.copy_(x);
      }
      if (ordering == Ordering::Wait) order(other, own);
      if (ordering == Ordering::RecordStream) x.record_stream(other);
      x.reset();
      order(other, own);
      EXPECT_EQ(result.sum().item<float>(), 5.0F);
    });
    if (ordering == Ordering::None) {
      expect_hazard(hazards, "'free' (rank 0, default stream) frees what 'aten::copy_'");
    } else {
      EXPECT_EQ(hazards, std::vector<std::string>());
    }
  }
}

TEST(CudaOrderTest, HostWaits_AreCounted) {
  run_cuda_ranks(1, [](CudaRank& rank) {
    const auto expect_syncs = [&](int more, const auto& call) {
      const int before = rank.host_syncs();
      call();
      EXPECT_EQ(rank.host_syncs() - before, more);
    };
    at::Tensor x;
    expect_syncs(0, [&] { x = at::ones({5}, rank.options()).mul_(2) + 1; });
    expect_syncs(1, [&] { EXPECT_EQ(x.sum().item<float>(), 15.0F); });
    expect_syncs(1, [&] { x.cpu(); });
    expect_syncs(0, [&] { at::empty({0}, rank.options()).cpu(); });
    expect_syncs(0, [&] { x.to(at::kCPU, /*non_blocking=*/true); });
    expect_syncs(1, [&] { at::ones({5}).to(rank.device()); });
    expect_syncs(1, [&] { EXPECT_EQ(at::nonzero(x).size(0), 5); });
    expect_syncs(1, [&] { at::equal(x, x); });
    expect_syncs(0, [&] { at::empty_like(x).copy_(x); });
    c10::Event event(c10::kCUDA);
    expect_syncs(0, [&] { event.record(current_cuda_stream(rank.device())); });
    expect_syncs(1, [&] { event.synchronize(); });
    EXPECT_TRUE(event.query());
  });
}

TensorView view_of(const at::Tensor& tensor, const CudaRank& rank) {
  return {tensor.mutable_data_ptr(), DType::Float32, tensor.sizes().vec(),
          Device{DeviceKind::Cuda, rank.rank()}};
}

TEST(CudaOrderTest, Collective_IsOrderedByItsStream) {
  for (const bool is_given : {true, false}) {
    const auto hazards = hazards_of_cuda_ranks(cuda_setting(3), [&](CudaRank& rank) {
      const c10::StreamGuard guard(other_stream(rank));
      for (int step = 0; step < 5; ++step) {
        at::Tensor x = at::full({100}, rank.rank() + step, rank.options());
        const TensorView view = view_of(x, rank);
        Handle handle = allreduce_async(view, view,
                                        {.op = ReduceOp::Sum,
                                         .name = "x",
                                         .process_set = &rank.world(),
                                         .keep_alive = std::make_shared<at::Tensor>(x),
                                         .stream = is_given ? rank.stream() : nullptr});
        handle.wait();
        const at::Tensor doubled = x * 2;
        if (is_given) {
          EXPECT_EQ(doubled.sum().item<float>(), 200.0F * static_cast<float>(3 + 3 * step));
        }
      }
    });
    EXPECT_EQ(hazards.empty(), is_given) << hazards.front();
  }
}

TEST(CudaOrderTest, Backward_RunsOnTheStreamOfForward) {
  run_cuda_ranks(2, [](CudaRank& rank) {
    const c10::impl::VirtualGuardImpl cuda(c10::kCUDA);
    const c10::Stream own = cuda.getStream(rank.device());
    const c10::Stream other = other_stream(rank);
    const at::Tensor x = at::ones({3}, rank.options()).requires_grad_();
    c10::Stream seen = own;
    x.register_hook([&](const at::Tensor&) { seen = cuda.getStream(rank.device()); });
    order(own, other);
    const c10::StreamGuard guard(other);
    (x * x).sum().backward();
    EXPECT_EQ(seen, other);
    EXPECT_EQ(x.grad().sum().item<float>(), 6.0F);
  });
}

}  // namespace kolo::test::fake_cuda_order_test

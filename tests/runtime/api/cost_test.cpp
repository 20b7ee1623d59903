// The protocol's cost for a program that repeats the same operations.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"

namespace kolo::test::cost_test {

using namespace std::chrono_literals;

/// The cost of a program's steps in the steady state.
struct Cost {
  std::uint64_t exchanges;
  std::uint64_t fruitless;
  std::uint64_t wake_up_requests;
  std::uint64_t negotiations;
  std::uint64_t header_bytes;
  std::uint64_t bytes_packed;
};

template <class Step>
Cost cost_of(Runtime& runtime, std::size_t warm_up, std::size_t counted, Step step) {
  std::size_t next = 0;
  while (next < warm_up) step(next++);
  const ProcessSet::Metrics a = runtime.world().metrics();
  while (next < warm_up + counted) step(next++);
  const ProcessSet::Metrics b = runtime.world().metrics();
  for (int i = 0; i < 3; ++i) step(next++);  // so that another rank's shutdown is not counted
  return {b.exchanges - a.exchanges,
          b.fruitless_exchanges - a.fruitless_exchanges,
          b.wake_up_requests - a.wake_up_requests,
          b.negotiations - a.negotiations,
          b.header_bytes - a.header_bytes,
          b.bytes_packed - a.bytes_packed};
}

/// Submits ten tensors, in order or in reverse, then waits for them.
void run_step(const Runtime& runtime, std::vector<Tensor>& tensors, bool forward) {
  std::vector<Handle> handles;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::size_t t = forward ? i : tensors.size() - 1 - i;
    tensors[t].fill([&](std::size_t k) { return input_value(runtime.rank(), k, t); });
    handles.push_back(allreduce_async(tensors[t].view(), tensors[t].view(),
                                      {.op = ReduceOp::Sum, .name = std::to_string(t)}));
  }
  for (Handle& handle : handles) handle.wait();
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    tensors[t].expect([&](std::size_t i) { return input_sum(runtime.size(), i, t); },
                      "tensor " + std::to_string(t));
  }
}

class CostTest : public testing::TestWithParam<Setting> {
 protected:
  Setting patient() const {
    Setting setting = GetParam();
    setting.config.tuning.patience = 10s;
    setting.config.fusion = false;  // nothing is packed without fusion
    return setting;
  }
};

INSTANTIATE_TEST_SUITE_P(
    , CostTest,
    testing::Values(Setting{.name = "Shared", .size = 3},
                    Setting{.name = "Messages", .size = 3, .network = {.nodes = 3}}),
    [](const auto& setting) { return setting.param.name; });

void expect_no_negotiation(const Cost& cost) {
  EXPECT_EQ(cost.negotiations, 0u);
  EXPECT_EQ(cost.wake_up_requests, 0u);
  EXPECT_EQ(cost.fruitless, 0u);
}

TEST_P(CostTest, SteadyProgram_NeedsHeadersOnly) {
  run_runtimes(patient(), [](Runtime& runtime) {
    std::vector<Tensor> tensors;
    for (int i = 0; i < 10; ++i) tensors.emplace_back(100 + i);
    const Cost cost =
        cost_of(runtime, 20, 200, [&](std::size_t) { run_step(runtime, tensors, true); });
    expect_no_negotiation(cost);
    EXPECT_EQ(cost.bytes_packed, 0u);
    EXPECT_GE(cost.exchanges, 200u);   // all tensors of a step in one exchange
    EXPECT_LE(cost.exchanges, 2000u);  // one exchange per tensor
  });
}

TEST_P(CostTest, BlockingProgram_NeedsOneHeaderPerTensorAndNoWakeUps) {
  run_runtimes(patient(), [](Runtime& runtime) {
    Tensor a(100);
    Tensor b(200);
    const Cost cost = cost_of(runtime, 20, 200, [&](std::size_t) {
      for (const Tensor* tensor : {&a, &b}) {
        allreduce(tensor->view(), tensor->view(), {.name = tensor == &a ? "a" : "b"});
      }
    });
    expect_no_negotiation(cost);
    EXPECT_EQ(cost.exchanges, 400u);
    EXPECT_GT(cost.header_bytes, 0u);
    EXPECT_EQ(cost.header_bytes % 400, 0u) << "the same in every exchange: " << cost.header_bytes;
  });
}

TEST_P(CostTest, EveryOperation_IsNegotiatedOnce) {
  run_runtimes(patient(), [](Runtime& runtime) {
    const Tensor tensor(6);
    const Tensor part(2);
    Rows gathered{DType::Float32, 1};
    Rows exchanged{DType::Float32, 1};
    const Cost cost = cost_of(runtime, 20, 100, [&](std::size_t) {
      broadcast(tensor.view(), 1, {.name = "broadcast"});
      reduce_scatter(tensor.view(), part.view(), {.name = "scatter"});
      allgather(part.view(), gathered.allocator(), {.name = "gather"});
      alltoall(tensor.view(), {}, exchanged.allocator(), {.name = "exchange"});
      grouped_allreduce({{tensor.view(), tensor.view()}, {part.view(), part.view()}},
                        {.name = "group"});
      barrier({.name = "barrier"});
    });
    expect_no_negotiation(cost);
    EXPECT_EQ(cost.exchanges, 600u);
  });
}

TEST_P(CostTest, AlternatingOrders_AreLearnt) {
  run_runtimes(patient(), [](Runtime& runtime) {
    std::vector<Tensor> tensors;
    for (int i = 0; i < 10; ++i) tensors.emplace_back(100 + i);
    const Cost cost = cost_of(runtime, 60, 200, [&](std::size_t step) {
      run_step(runtime, tensors, step / 10 % 2 == 0);
    });
    expect_no_negotiation(cost);
  });
}

TEST(FusionTest, TensorsReadyTogether_RunAsOneBatch) {
  const struct {
    bool fusion;
    std::size_t fusion_bytes;
    bool is_packed;
  } cases[] = {{true, 512 << 10, true}, {true, 799, false}, {false, 512 << 10, false}};
  for (const auto& item : cases) {
    Setting setting{.size = 2};
    setting.config.fusion = item.fusion;
    setting.config.fusion_bytes = item.fusion_bytes;
    setting.config.tuning.patience = 10s;
    run_runtimes(setting, [&](Runtime& runtime) {
      std::vector<Tensor> tensors;  // any two have more than 800 bytes
      for (int i = 0; i < 10; ++i) tensors.emplace_back(100 + i);
      for (int step = 0; step < 20; ++step) run_step(runtime, tensors, true);
      EXPECT_EQ(runtime.world().metrics().bytes_packed > 0, item.is_packed) << item.fusion_bytes;
    });
  }
}

}  // namespace kolo::test::cost_test

// Barriers: no rank leaves before all have entered.
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "runtime/every_world.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"

namespace kolo::test::barrier_test {

using namespace std::chrono_literals;

class BarrierTest : public EveryWorldTest {};

INSTANTIATE_TEST_SUITE_P(, BarrierTest, testing::ValuesIn(all_settings()), name_of_setting);

TEST_P(BarrierTest, NoRankPassesBeforeAllHaveArrived) {
  std::atomic<int> arrived{0};
  run([&](Runtime& runtime) {
    for (int round = 1; round <= 10; ++round) {
      if (round % size() == runtime.rank()) std::this_thread::sleep_for(2ms);
      ++arrived;
      if (round % 2 == 0) {
        barrier({.name = "x"});
      } else {
        barrier();
      }
      EXPECT_GE(arrived, round * size()) << "round " << round;
      barrier();  // no rank starts the next round before all have checked
    }
  });
}

TEST_P(BarrierTest, WaitsForNothingElse) {
  run([&](Runtime& runtime) {
    Tensor tensor(5);
    tensor.fill([&](std::size_t i) { return input_value(runtime.rank(), i); });
    Handle early;
    const AllreduceOptions options{.op = ReduceOp::Sum, .name = "x"};
    if (runtime.rank() == 0) early = allreduce_async(tensor.view(), tensor.view(), options);
    Handle several[] = {barrier_async({.name = "a"}), barrier_async({.name = "b"})};
    for (Handle& handle : several) handle.wait();
    if (runtime.rank() != 0) early = allreduce_async(tensor.view(), tensor.view(), options);
    early.wait();
    tensor.expect([&](std::size_t i) { return input_sum(size(), i); }, "x");
  });
}

}  // namespace kolo::test::barrier_test

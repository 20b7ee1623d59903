// Handles of operations in flight: waiting, dropping, moving, errors.
#include <chrono>
#include <cstddef>
#include <latch>
#include <string>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"

namespace kolo::test::handle_test {

using namespace std::chrono_literals;

TEST(HandleTest, ANameInFlightIsRefused) {
  std::latch refused(1);
  run_runtimes(2, [&](Runtime& runtime) {
    Tensor tensor(4);
    Tensor other(4);
    if (runtime.rank() == 1) refused.wait();
    tensor.fill([&](std::size_t i) { return input_value(runtime.rank(), i); });
    AllreduceOptions options{.op = ReduceOp::Sum, .name = "x"};
    Handle first = allreduce_async(tensor.view(), tensor.view(), options);
    if (runtime.rank() == 0) {
      const std::string text =
          text_thrown_by<InvalidArgument>([&] { allreduce(other.view(), other.view(), options); });
      expect_contains(text, "allreduce 'x' on process set world");
      expect_contains(text, "in flight");
      refused.count_down();
    }
    first.wait();
    tensor.expect([](std::size_t i) { return input_sum(2, i); }, "the first one");
    expect_sum_works(runtime, "x");  // free again
  });
}

TEST(HandleTest, ReadyOnlyOnceAllRanksHaveSubmitted) {
  std::latch have_looked(2);
  run_runtimes(3, [&](Runtime& runtime) {
    expect_sum_works(runtime, "before");
    Tensor tensor(4);
    if (runtime.rank() == 1) have_looked.wait();
    auto before_last_submission = std::chrono::steady_clock::now();
    Handle handle = allreduce_async(tensor.view(), tensor.view(), {.name = "x"});
    if (runtime.rank() != 1) {
      EXPECT_FALSE(handle.is_ready());
      EXPECT_FALSE(handle.wait_for(1ms));
      before_last_submission = std::chrono::steady_clock::now();
      have_looked.count_down();
    }
    EXPECT_TRUE(handle.wait_for(30s));
    EXPECT_TRUE(handle.is_ready());
    EXPECT_LE(before_last_submission, handle.started());
    EXPECT_LE(handle.started(), handle.ended());
    EXPECT_LE(handle.ended(), std::chrono::steady_clock::now());
    handle.wait();
    handle.wait();
  });
}

TEST(HandleTest, IsEmptyOnceMovedFrom) {
  run_runtimes(1, [](Runtime&) {
    Tensor tensor(4);
    Handle handle = allreduce_async(tensor.view(), tensor.view());
    Handle moved = std::move(handle);
    moved.wait();
    EXPECT_THROW(handle.wait(), InvalidArgument);  // NOLINT: what moving leaves behind is the point
    EXPECT_THROW(handle.wait_for(1ms), InvalidArgument);
    EXPECT_THROW(static_cast<void>(handle.is_ready()), InvalidArgument);
    EXPECT_THROW(Handle().wait(), InvalidArgument);
  });
}

TEST(HandleTest, RethrowsItsErrorEachTime) {
  run_runtimes(2, [](Runtime& runtime) {
    Tensor tensor(4 + runtime.rank());
    Handle handle = allreduce_async(tensor.view(), tensor.view(), {.name = "x"});
    const auto text = [&] { return text_thrown_by<MismatchError>([&] { handle.wait(); }); };
    EXPECT_EQ(text(), text());
    EXPECT_TRUE(handle.is_ready());
  });
}

}  // namespace kolo::test::handle_test

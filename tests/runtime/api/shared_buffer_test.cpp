// SharedBuffers: reductions in place, bounds and lifetime.
#include "kolo/shared_buffer.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"

namespace kolo::test::shared_buffer_test {

class SharedBufferTest : public testing::TestWithParam<Setting> {};

INSTANTIATE_TEST_SUITE_P(
    , SharedBufferTest,
    testing::Values(Setting{.name = "Alone", .size = 1}, Setting{.name = "Two", .size = 2},
                    Setting{.name = "Three", .size = 3}, Setting{.name = "Seven", .size = 7},
                    Setting{.name = "Nodes", .size = 3, .network = {.nodes = 2}},
                    Setting{
                        .name = "NoMemory", .size = 3, .network = {.has_shared_memory = false}}),
    [](const auto& setting) { return setting.param.name; });

TEST_P(SharedBufferTest, IsReducedInPlaceWithoutPacking) {
  run_runtimes(GetParam(), [](Runtime& runtime) {
    const bool can_share =
        GetParam().name == "Two" || GetParam().name == "Three" || GetParam().name == "Seven";
    constexpr std::size_t kCount = 50021;
    const SharedBuffer buffer(2 * kCount * sizeof(float) + 64, {.name = "memory"});
    EXPECT_EQ(buffer.is_shared(), can_share);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64, 0u);
    auto* const values = reinterpret_cast<float*>(buffer.data());
    for (std::size_t i = 0; i < 2 * kCount; ++i) ASSERT_EQ(values[i], 0) << "element " << i;
    const std::uint64_t packed = runtime.world().metrics().bytes_packed;
    for (std::size_t step = 0; step < 4; ++step) {
      for (std::size_t i = 0; i < 2 * kCount; ++i) {
        values[i] = static_cast<float>(input_value(runtime.rank(), i, step));
      }
      Handle second = allreduce_async(buffer, kCount * sizeof(float), kCount, DType::Float32,
                                      {.op = ReduceOp::Sum, .name = "second"});
      Handle first =
          allreduce_async(buffer, 0, 7, DType::Float32, {.op = ReduceOp::Max, .name = "first"});
      first.wait();
      second.wait();
      for (std::size_t i = 0; i < kCount; ++i) {
        ASSERT_EQ(values[kCount + i], input_sum(runtime.size(), kCount + i, step)) << i;
      }
      for (std::size_t i = 0; i < 7; ++i) {
        float greatest = 0;
        for (int rank = 0; rank < runtime.size(); ++rank) {
          greatest = std::max(greatest, static_cast<float>(input_value(rank, i, step)));
        }
        ASSERT_EQ(values[i], greatest) << i;
      }
      for (std::size_t i = 7; i < kCount; ++i) {
        ASSERT_EQ(values[i], input_value(runtime.rank(), i, step)) << i;
      }
    }
    EXPECT_EQ(runtime.world().metrics().bytes_packed, packed);
  });
}

TEST_P(SharedBufferTest, MayBeDestroyedBeforeItsOperationEnds) {
  run_runtimes(GetParam(), [](Runtime& runtime) {
    Handle handle;
    {
      const SharedBuffer buffer(640);
      EXPECT_EQ(buffer.size_bytes(), 640u);
      handle = allreduce_async(buffer, 0, 160, DType::Float32, {.name = "x"});
    }
    handle.wait();
    expect_sum_works(runtime, "y");
  });
}

}  // namespace kolo::test::shared_buffer_test

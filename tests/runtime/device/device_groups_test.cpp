// The number of collective launches on GPUs.
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "runtime/device/programs.hpp"
#include "runtime/runtimes.hpp"

namespace kolo::test::device_groups_test {

class DeviceGroupsTest : public testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }
  float ranks() const { return static_cast<float>(size()); }
  /// The sum over ranks r of r + 1 + i.
  float sum_at(std::size_t i) const {
    return ranks() * (ranks() + 1) / 2 + ranks() * static_cast<float>(i);
  }
};
INSTANTIATE_TEST_SUITE_P(, DeviceGroupsTest, testing::Values(1, 2, 3, 4));

TEST_P(DeviceGroupsTest, MovesOfOneOperationAreLaunchedTogether) {
  run_programs(setting_with_gpus(size()), [&](Runtime& runtime, FakeWorld& world) {
    GpuProgram program(world);
    const float own = static_cast<float>(runtime.rank() + 1);
    const int root = size() - 1;
    Tensors sent(program, {7, 1, 0, 33, 5});
    sent.write(own);
    grouped_broadcast({sent.view(0), sent.view(1), sent.view(2), sent.view(3), sent.view(4)}, root,
                      {.name = "b", .stream = program.stream()});
    for (std::size_t i = 0; i < sent.size(); ++i) {
      sent.expect_all(i, ranks() + static_cast<float>(i));
    }
    EXPECT_EQ(world.hub()->launches(runtime.rank()), 1);

    const auto all = static_cast<std::size_t>(size());
    Tensors rows(program, {7, 33});
    Tensors gathered(program, {7 * all, 33 * all});
    rows.write(own);
    std::vector<InputRows> inputs;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      inputs.push_back({rows.view(i), [&gathered, i](const std::vector<std::int64_t>&) {
                          return gathered.data(i);
                        }});
    }
    grouped_allgather(std::move(inputs), {.name = "g", .stream = program.stream()});
    for (std::size_t i = 0; i < rows.size(); ++i) {
      std::vector<float> expected;
      for (int rank = 0; rank < size(); ++rank) {
        expected.insert(expected.end(), i == 0 ? 7 : 33,
                        static_cast<float>(rank + 1) + static_cast<float>(i));
      }
      gathered.expect(i, expected);
    }
    EXPECT_EQ(world.hub()->launches(runtime.rank()), 2);
  });
}

TEST_P(DeviceGroupsTest, ReductionsInPlaceAreLaunchedTogether) {
  Setting setting = setting_with_gpus(size());
  setting.config.fusion = false;
  run_programs(setting, [&](Runtime& runtime, FakeWorld& world) {
    GpuProgram program(world);
    const float own = static_cast<float>(runtime.rank() + 1);
    Tensors tensors(program, {7, 1, 64, 33});
    tensors.write(own);
    grouped_allreduce(
        tensors.in_place(),
        {.op = ReduceOp::Sum, .prescale = 0.5, .name = "r", .stream = program.stream()});
    for (std::size_t i = 0; i < tensors.size(); ++i) tensors.expect_all(i, sum_at(i) / 2);
    EXPECT_EQ(world.hub()->launches(runtime.rank()), 1);

    const auto all = static_cast<std::size_t>(size());
    Tensors inputs(program, {2 * all, 5 * all});
    Tensors outputs(program, {2, 5});
    inputs.write(own);
    grouped_reduce_scatter(
        {{inputs.view(0), outputs.view(0)}, {inputs.view(1), outputs.view(1)}},
        {.op = ReduceOp::Sum, .postscale = 2.0, .name = "s", .stream = program.stream()});
    for (std::size_t i = 0; i < outputs.size(); ++i) outputs.expect_all(i, 2 * sum_at(i));
    EXPECT_EQ(world.hub()->launches(runtime.rank()), 2);
  });
}

/// Small neighbours are packed in staging memory; the others are reduced in place.
TEST_P(DeviceGroupsTest, PackedTensorsAndLargeOnesAreLaunchedTogether) {
  Setting setting = setting_with_gpus(size());
  setting.config.fusion_bytes = 400;
  run_programs(setting, [&](Runtime& runtime, FakeWorld& world) {
    GpuProgram program(world);
    Tensors tensors(program, {20, 30, 101, 7, 8, 200});
    for (int step = 0; step < 3; ++step) {
      tensors.write(static_cast<float>(runtime.rank() + 1));
      const int before = world.hub()->launches(runtime.rank());
      grouped_allreduce(tensors.in_place(),
                        {.op = ReduceOp::Sum, .name = "r", .stream = program.stream()});
      for (std::size_t i = 0; i < tensors.size(); ++i) tensors.expect_all(i, sum_at(i));
      EXPECT_EQ(world.hub()->launches(runtime.rank()) - before, 1);
    }
  });
}

}  // namespace kolo::test::device_groups_test

// The fake GPUs' checks of groups of launches.
#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "comm/gpu_ranks.hpp"

namespace kolo::test::fake_gpu_launches_test {

/// Expects that a hazard of `body` on two ranks contains `text`.
void expect_hazard(const std::string& text, const std::function<void(const GpuRank&)>& body) {
  const std::vector<std::string> hazards = run_on_gpus(2, body);
  EXPECT_TRUE(std::any_of(hazards.begin(), hazards.end(), [&](const std::string& hazard) {
    return hazard.find(text) != std::string::npos;
  })) << testing::PrintToString(hazards);
}

void all_reduce(const GpuRank& self, const DeviceArray<float>& array, comm::DeviceStream stream) {
  self.communicator.all_reduce(array.data(), array.data(), array.count(), DType::Float32,
                               ReduceOp::Sum, stream);
}

TEST(FakeGpuGroupsTest, RunAsOneLaunch) {
  expect_no_hazards([](const GpuRank& self) {
    DeviceArray<float> one(self, {1, 2});
    DeviceArray<float> other(self, {3});
    comm::DeviceGroup group(self.communicator);
    all_reduce(self, one, nullptr);
    all_reduce(self, other, nullptr);
    EXPECT_EQ(self.hub.launches(self.rank), 0);
    group.end();
    EXPECT_EQ(self.hub.launches(self.rank), 1);
    self.hub.synchronize(self.rank, nullptr);
    const auto n = static_cast<float>(self.size);
    EXPECT_EQ(one.get(), (std::vector<float>{n, 2 * n}));
    EXPECT_EQ(other.get(), std::vector<float>{3 * n});
  });
}

TEST(FakeGpuGroupsTest, MemoryThatTwoOperationsUseIsAHazard) {
  expect_hazard("use the same memory", [](const GpuRank& self) {
    DeviceArray<float> array(self, {1, 2});
    comm::DeviceGroup group(self.communicator);
    all_reduce(self, array, nullptr);
    all_reduce(self, array, nullptr);
    group.end();
    self.hub.synchronize(self.rank, nullptr);
  });
}

TEST(FakeGpuGroupsTest, WorkLaunchedInsideIsAHazard) {
  expect_hazard("comes before the operations of a group", [](const GpuRank& self) {
    const auto stream = self.gpu.make_stream();
    DeviceArray<float> array(self, {1});
    comm::DeviceGroup group(self.communicator);
    all_reduce(self, array, stream.get());
    self.gpu.fill(array.data(), 1, DType::Float32, {}, stream.get());
    group.end();
    self.hub.synchronize(self.rank, stream.get());
  });
}

TEST(FakeGpuGroupsTest, QueryInsideIsAHazard) {
  expect_hazard("'ready' was asked", [](const GpuRank& self) {
    comm::DeviceGroup group(self.communicator);
    EXPECT_TRUE(self.communicator.ready());
    group.end();
  });
}

}  // namespace kolo::test::fake_gpu_launches_test

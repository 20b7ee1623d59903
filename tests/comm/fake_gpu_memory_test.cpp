// Memory errors on GPUs, which the fake GPUs report.
#include <cstddef>
#include <future>
#include <latch>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "comm/gpu_ranks.hpp"
#include "support/gpu/scalar.hpp"

namespace kolo::test::fake_gpu_memory_test {

TEST(FakeGpuMemoryTest, OperationsUseTheMemoryOfTheirOwnGpu) {
  std::vector<float> on_the_host(4);
  std::promise<std::byte*> others;
  std::latch used(1);
  const auto hazards = run_on_gpus(2, [&](const GpuRank& self) {
    DeviceArray<float> array(self, {1, 2, 3, 4});
    if (self.rank == 1) {
      others.set_value(array.data());
      used.wait();
      return;
    }
    const auto fill = [&](std::byte* to, std::size_t count) {
      self.gpu.fill(to, count, DType::Float32, scalar_of(DType::Float32, 7), nullptr);
    };
    fill(reinterpret_cast<std::byte*>(on_the_host.data()), 4);
    fill(others.get_future().get(), 4);
    fill(array.data() + 4, 4);
    fill(array.data() + 4, 3);
    self.hub.synchronize(0, nullptr);
    EXPECT_EQ(array.get(), (std::vector<float>{1, 7, 7, 7}));
    used.count_down();
  });
  const std::string fill = "not device memory: 'fill' on rank 0 uses ";
  EXPECT_EQ(hazards, (std::vector<std::string>{fill + "memory of no GPU",
                                               fill + "memory of the GPU of rank 1",
                                               fill + "more than was allocated there"}));
  EXPECT_EQ(on_the_host, std::vector<float>(4));
}

TEST(FakeGpuMemoryTest, InPlaceIsInOnePlace) {
  const auto hazards = hazards_of([](const GpuRank& self, std::byte* input, std::byte*) {
    const std::vector<std::size_t> counts{2, 2};
    self.communicator.all_reduce(input, input + 4, 4, DType::Float32, ReduceOp::Sum, nullptr);
    self.communicator.all_to_all(input, counts, input, counts, DType::Float32, nullptr);
    const comm::DeviceRun run{input, input, 4};
    self.gpu.convert({&run, 1}, {.from = DType::Float32, .to = DType::Float16}, nullptr);
    self.gpu.add_up({input, DType::Float32, 2, 2, 2}, {}, input + 12, nullptr);
  });
  EXPECT_EQ(hazards.size(), 8u);
  for (const std::string& hazard : hazards) EXPECT_EQ(hazard.find("in place: "), 0u) << hazard;
}

TEST(FakeGpuMemoryTest, AHostThatDoesNotWaitSeesOldValues) {
  const auto hazards = run_on_gpus(1, [&](const GpuRank& self) {
    DeviceArray<float> array(self, {1});
    self.gpu.fill(array.data(), 1, DType::Float32, scalar_of(DType::Float32, 2), nullptr);
    EXPECT_EQ(array.get(), std::vector<float>{1});
    self.hub.synchronize(0, nullptr);
    EXPECT_EQ(array.get(), std::vector<float>{2});
  });
  ASSERT_EQ(hazards.size(), 1u);
  EXPECT_TRUE(has_hazard(hazards, "read after write: ") || has_hazard(hazards, "write after read"))
      << hazards.front();
}

}  // namespace kolo::test::fake_gpu_memory_test

// The fake GPUs' checks of groups of launches and of registered memory.
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
  self.communicator.all_reduce(array.data(), array.data(), array.count(), DType::Float32, {},
                               stream);
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

TEST(FakeGpuRegistrationsTest, MistakesAreHazards) {
  expect_hazard("memory was freed that still is", [](const GpuRank& self) {
    DeviceArray<float> array(self, {1});
    void* const registration = self.communicator.register_memory(array.data(), 4);
    array.free();
    self.communicator.deregister(registration);
  });
  expect_hazard("a communicator ended", [](const GpuRank& self) {
    const auto array = std::make_shared<DeviceArray<float>>(self, std::size_t{1});
    const auto other = connect(self.world, self.gpu, all_ranks(self.size), 1);
    other->register_memory(array->data(), 4);
  });
  expect_hazard("that an operation uses", [](const GpuRank& self) {
    DeviceArray<float> array(self, {1});
    void* const registration = self.communicator.register_memory(array.data(), 4);
    if (self.rank == 0) self.hub.lose_collective(0, 0);
    all_reduce(self, array, nullptr);
    self.communicator.deregister(registration);
    self.communicator.abort("over");
  });
}

/// Registers an array for the lifetime of this object.
class Known {
 public:
  Known(const GpuRank& self, const DeviceArray<float>& array, bool is_known = true)
      : communicator_(self.communicator),
        registration_(is_known ? communicator_.register_memory(array.data(), array.range().size())
                               : nullptr) {}
  Known(const Known&) = delete;  // a registration ends once
  Known& operator=(const Known&) = delete;
  ~Known() { communicator_.deregister(registration_); }

 private:
  comm::DeviceCommunicator& communicator_;
  void* registration_;
};

void all_to_all(const GpuRank& self, const DeviceArray<float>& from, const DeviceArray<float>& to) {
  const std::vector<std::size_t> ones(static_cast<std::size_t>(self.size), 1);
  self.communicator.all_to_all(from.data(), ones, to.data(), ones, DType::Float32, nullptr);
  self.hub.synchronize(self.rank, nullptr);
}

TEST(FakeGpuRegistrationsTest, MixedMemoryIsAHazard) {
  expect_hazard("mixes registered memory", [](const GpuRank& self) {
    const DeviceArray<float> array(self, {1});
    const Known known(self, array, self.rank == 0);
    all_reduce(self, array, nullptr);
    self.hub.synchronize(self.rank, nullptr);
  });
  expect_hazard("mixes registered memory", [](const GpuRank& self) {  // a part is not enough
    const DeviceArray<float> array(self, {1, 2});
    const DeviceArray<float> part(self, {3});
    const Known known(self, self.rank == 0 ? array : part);
    all_reduce(self, array, nullptr);
    self.hub.synchronize(self.rank, nullptr);
  });
  expect_hazard("mixes registered memory", [](const GpuRank& self) {
    const auto ranks = static_cast<std::size_t>(self.size);
    const DeviceArray<float> from(self, std::vector<float>(ranks, 1.0F));
    const DeviceArray<float> to(self, ranks);
    const Known known(self, to);
    all_to_all(self, from, to);
  });
  expect_no_hazards([](const GpuRank& self) {
    const auto ranks = static_cast<std::size_t>(self.size);
    const DeviceArray<float> from(self, std::vector<float>(ranks, 1.0F));
    const DeviceArray<float> to(self, ranks);
    const Known sent(self, from);
    const std::vector<std::size_t> ones(ranks, 1);
    self.communicator.reduce_scatter(from.data(), to.data(), ones, DType::Float32, {}, nullptr);
    self.hub.synchronize(self.rank, nullptr);
    const Known received(self, to);
    all_to_all(self, from, to);
  });
}

TEST(FakeGpuRegistrationsTest, MayBeRefused) {
  expect_no_hazards([](const GpuRank& self) {
    const DeviceArray<float> array(self, {1});
    const DeviceArray<float> other(self, {1});
    self.hub.refuse_registration(array.data());
    EXPECT_EQ(self.communicator.register_memory(array.data(), 4), nullptr);
    void* const registration = self.communicator.register_memory(other.data(), 4);
    EXPECT_NE(registration, nullptr);
    self.communicator.deregister(registration);
    self.hub.refuse_registrations(self.rank);
    EXPECT_EQ(self.communicator.register_memory(other.data(), 4), nullptr);
    EXPECT_EQ(self.hub.registrations(self.rank), (FakeRegistrations::Count{1, 1}));
  });
}

TEST(FakeGpuRegistrationsTest, AbortEndsThem) {
  expect_no_hazards([](const GpuRank& self) {
    DeviceArray<float> array(self, {1});
    void* const registration = self.communicator.register_memory(array.data(), 4);
    self.communicator.abort("over");
    self.communicator.deregister(registration);
    EXPECT_EQ(self.hub.registrations(self.rank), (FakeRegistrations::Count{1, 1}));
  });
}

}  // namespace kolo::test::fake_gpu_launches_test

#include "comm/gpu/nccl_communicator.hpp"

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "comm/gpu/cuda.hpp"
#include "comm/self_world.hpp"
#include "comm/wait.hpp"
#include "gpu/device_copy.hpp"
#include "gpu/device_floats.hpp"
#include "gpu/skip_without_gpu.hpp"
#include "kolo/error.hpp"

namespace kolo::comm::nccl_communicator_test {

using test::DeviceFloats;

/// A world of one rank, all that NCCL runs on one GPU. It suffices to check that NCCL accepts every
/// call.
class NcclCommunicatorTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = test::why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
    SelfWorld world;
    const std::vector<int> ranks{0};
    const auto messages = world.make_communicator(ranks, 0);
    wait(NcclCommunicator::make(*messages, 3, 0, communicator_),
         Deadline::after(std::chrono::minutes(1)));
    stream_ = make_high_priority_stream();
  }

  void finish() {
    while (!communicator_->ready()) {
    }
    KOLO_CUDA_TRY(cudaStreamSynchronize(stream_.get()));
  }

  std::unique_ptr<DeviceCommunicator> communicator_;
  CudaStream stream_;
};

std::vector<float> ramp(std::size_t count, float step) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i) * step - 7.0F;
  return values;
}

TEST_F(NcclCommunicatorTest, AllReduceOfOneRankIsACopy) {
  constexpr std::size_t kCount = 100'003;
  DeviceFloats input(kCount);
  DeviceFloats output(kCount);
  input.set(ramp(kCount, 0.5F));
  output.set(ramp(kCount, 3.0F));
  communicator_->all_reduce(input.data(), output.data(), kCount, DType::Float32, ReduceOp::Sum,
                            stream_.get());
  finish();
  EXPECT_EQ(output.get(), ramp(kCount, 0.5F));
  EXPECT_EQ(input.get(), ramp(kCount, 0.5F));
  communicator_->all_reduce(output.data(), output.data(), kCount, DType::Float32, ReduceOp::Max,
                            stream_.get());
  finish();
  EXPECT_EQ(output.get(), ramp(kCount, 0.5F));
}

TEST_F(NcclCommunicatorTest, CollectivesOfOneRankAreCopies) {
  constexpr std::size_t kCount = 257;
  const std::vector<std::size_t> counts{kCount};
  const std::vector<float> values = ramp(kCount, 2.0F);
  const auto expect_copied = [&](auto collective) {
    DeviceFloats input(kCount);
    DeviceFloats output(kCount);
    input.set(values);
    output.set(ramp(kCount, 3.0F));
    collective(input.data(), output.data());
    finish();
    EXPECT_EQ(output.get(), values);
    EXPECT_EQ(input.get(), values);
  };
  expect_copied([&](const float* input, float* output) {
    communicator_->reduce_scatter(input, output, counts, DType::Float32, ReduceOp::Sum,
                                  stream_.get());
  });
  expect_copied([&](const float* input, float* output) {
    communicator_->all_gather(input, output, counts, DType::Float32, stream_.get());
  });
  expect_copied([&](const float* input, float* output) {
    communicator_->all_to_all(input, counts, output, counts, DType::Float32, stream_.get());
  });
  expect_copied([&](const float* input, float* output) {
    test::copy_bytes(output, input, kCount * sizeof(float));
    communicator_->broadcast(output, kCount, DType::Float32, 0, stream_.get());
  });
}

TEST_F(NcclCommunicatorTest, MovesTypesThatNcclCannotReduce) {
  DeviceFloats input(1);
  DeviceFloats output(1);
  input.set({1.5F});
  const std::vector<std::size_t> counts{2};
  communicator_->all_gather(input.data(), output.data(), counts, DType::Int16, stream_.get());
  finish();
  EXPECT_EQ(output.get(), std::vector<float>{1.5F});
}

TEST_F(NcclCommunicatorTest, EmptyOperationsAreAllowed) {
  const std::vector<std::size_t> counts{0};
  communicator_->all_reduce(nullptr, nullptr, 0, DType::Float32, ReduceOp::Sum, stream_.get());
  finish();
  communicator_->reduce_scatter(nullptr, nullptr, counts, DType::Float32, ReduceOp::Sum,
                                stream_.get());
  finish();
  communicator_->all_gather(nullptr, nullptr, counts, DType::Float32, stream_.get());
  finish();
  communicator_->broadcast(nullptr, 0, DType::Float32, 0, stream_.get());
  finish();
  communicator_->all_to_all(nullptr, counts, nullptr, counts, DType::Float32, stream_.get());
  finish();
}

TEST_F(NcclCommunicatorTest, CountsAreThoseOfAllRanks) {
  DeviceFloats memory(2);
  const std::vector<std::size_t> counts{1, 1};
  EXPECT_THROW(communicator_->all_gather(memory.data(), memory.data(), counts, DType::Float32,
                                         stream_.get()),
               InvalidArgument);
  EXPECT_TRUE(communicator_->ready());  // no call was made
}

TEST_F(NcclCommunicatorTest, RefusesWhatNcclCannotReduce) {
  DeviceFloats memory(1);
  const auto reduce = [&](DType dtype, ReduceOp op) {
    communicator_->all_reduce(memory.data(), memory.data(), 1, dtype, {op}, stream_.get());
  };
  EXPECT_THROW(reduce(DType::Int16, ReduceOp::Sum), InvalidArgument);
  EXPECT_THROW(reduce(DType::Bool, ReduceOp::Sum), InvalidArgument);
  EXPECT_THROW(reduce(DType::Float32, ReduceOp::Average), InvalidArgument);
  EXPECT_TRUE(communicator_->ready());  // no call was made
}

TEST_F(NcclCommunicatorTest, GroupsAreOneOperation) {
  DeviceFloats one(257);
  DeviceFloats sum(257);
  DeviceFloats other(3);
  one.set(ramp(257, 0.5F));
  other.set(ramp(3, 2.0F));
  const std::vector<std::size_t> counts{3};
  DeviceFloats gathered(3);
  DeviceGroup group(*communicator_);
  communicator_->all_reduce(one.data(), sum.data(), 257, DType::Float32, ReduceOp::Sum,
                            stream_.get());
  communicator_->all_gather(other.data(), gathered.data(), counts, DType::Float32, stream_.get());
  group.end();
  finish();
  EXPECT_EQ(gathered.get(), ramp(3, 2.0F));
  EXPECT_EQ(sum.get(), ramp(257, 0.5F));
}

TEST_F(NcclCommunicatorTest, GroupThatFailsIsClosed) {
  DeviceFloats memory(1);
  EXPECT_THROW(
      {
        const DeviceGroup group(*communicator_);
        communicator_->all_reduce(memory.data(), memory.data(), 1, DType::Int16, ReduceOp::Sum,
                                  stream_.get());
      },
      InvalidArgument);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);  // no group is open
}

TEST_F(NcclCommunicatorTest, AfterAnAbortEveryCallGivesTheReason) {
  communicator_->abort("rank 3 died");
  communicator_->abort("another reason");
  DeviceFloats memory(1);
  const auto error_of = [](auto call) {
    try {
      call();
    } catch (const BackendError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(error_of([&] { communicator_->ready(); }).find("rank 3 died"), std::string::npos);
  EXPECT_NE(error_of([&] {
              communicator_->all_reduce(memory.data(), memory.data(), 1, DType::Float32,
                                        ReduceOp::Sum, stream_.get());
            }).find("rank 3 died"),
            std::string::npos);
}

TEST_F(NcclCommunicatorTest, OwnersOfStreamsAndEventsMove) {
  CudaStream moved = std::move(stream_);
  EXPECT_EQ(stream_, nullptr);
  stream_ = std::move(moved);
  CudaEvent event = make_event(cudaEventDisableTiming);
  KOLO_CUDA_TRY(cudaEventRecord(event.get(), stream_.get()));
  const CudaEvent owner = std::move(event);
  EXPECT_EQ(event, nullptr);
  KOLO_CUDA_TRY(cudaEventSynchronize(owner.get()));
}

TEST(CudaCheckTest, ErrorsCarryTheCallAndTheText) {
  try {
    KOLO_CUDA_TRY(cudaErrorInvalidValue);
    ADD_FAILURE() << "no error";
  } catch (const BackendError& error) {
    EXPECT_NE(std::string(error.what()).find("cudaErrorInvalidValue failed with"),
              std::string::npos)
        << error.what();
  }
  EXPECT_NO_THROW(KOLO_CUDA_TRY(ncclInProgress));
  EXPECT_THROW(KOLO_CUDA_TRY(ncclInvalidUsage), BackendError);
}

/// Also after an error: an open group would swallow all later calls.
TEST(NcclGroupTest, EndsOnce) {
  {
    NcclGroup group;
    group.end();
  }
  EXPECT_THROW(
      {
        const NcclGroup group;
        throw BackendError("in between");
      },
      BackendError);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);  // no group is open
}

}  // namespace kolo::comm::nccl_communicator_test

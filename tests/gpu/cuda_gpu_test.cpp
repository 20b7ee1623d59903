// Streams, events and memory of a GPU.
#include "comm/gpu/cuda_gpu.hpp"

#include <cstddef>
#include <cstdint>
#include <latch>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/gpu/gpu.hpp"
#include "gpu/cuda_gpu_fixture.hpp"
#include "gpu/device_copy.hpp"
#include "kolo/error.hpp"
#include "support/gpu/scalar.hpp"

namespace kolo::comm::cuda_gpu_test {

/// While it lives, what comes later in the stream waits.
class HeldStream {
 public:
  explicit HeldStream(CUstream_st* stream) : stream_(stream) {
    const auto wait = [](void* end) { static_cast<std::latch*>(end)->wait(); };
    KOLO_CUDA_TRY(cudaLaunchHostFunc(stream, wait, &end_));
  }
  HeldStream(const HeldStream&) = delete;  // released once
  HeldStream& operator=(const HeldStream&) = delete;
  ~HeldStream() {
    end_.count_down();
    cudaStreamSynchronize(stream_);  // the stream uses the latch
  }

 private:
  CUstream_st* const stream_;
  std::latch end_{1};
};

TEST_F(CudaGpuTest, EventsPassInTheOrderOfTheStream) {
  constexpr std::size_t kBytes = 4096;
  const auto memory = gpu_->allocate(kBytes);
  const auto other = gpu_->make_stream();
  const auto fill = [&](const auto& stream, int value) {
    gpu_->fill(memory.get(), kBytes, DType::UInt8, test::scalar_of(DType::UInt8, value),
               stream.get());
  };
  const auto first = gpu_->make_event();
  const auto second = gpu_->make_event();
  EXPECT_TRUE(gpu_->has_passed(first.get()));  // never recorded
  fill(stream_, 1);                            // loads the kernel, which waits for all streams
  {
    const HeldStream held(stream_.get());
    fill(stream_, 2);
    gpu_->record(first.get(), stream_.get());
    gpu_->wait(other.get(), first.get());
    fill(other, 99);
    gpu_->record(second.get(), other.get());
    EXPECT_FALSE(gpu_->has_passed(first.get()));
    EXPECT_FALSE(gpu_->has_passed(second.get()));
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);  // "not ready" leaves no error behind
  }
  KOLO_CUDA_TRY(cudaStreamSynchronize(other.get()));
  EXPECT_TRUE(gpu_->has_passed(first.get()));
  EXPECT_TRUE(gpu_->has_passed(second.get()));
  std::uint8_t value = 0;
  test::copy_bytes(&value, memory.get() + kBytes - 1, 1);
  EXPECT_EQ(value, 99);
}

TEST_F(CudaGpuTest, TimersMeasureTheWorkBetweenThem) {
  constexpr std::size_t kBytes = std::size_t{1} << 28;
  const auto memory = gpu_->allocate(kBytes);
  const auto first = gpu_->make_timer();
  const auto middle = gpu_->make_timer();
  const auto last = gpu_->make_timer();
  for (const auto& timer : {first, middle, last}) {
    gpu_->fill(memory.get(), kBytes, DType::UInt8, test::scalar_of(DType::UInt8, 1), stream_.get());
    gpu_->record(timer.get(), stream_.get());
  }
  synchronize();
  const double half = gpu_->seconds_between(first.get(), middle.get());
  const double whole = gpu_->seconds_between(first.get(), last.get());
  EXPECT_GT(half, 0.0);
  EXPECT_NEAR(whole, half + gpu_->seconds_between(middle.get(), last.get()), 1e-6 * whole + 2e-6);
}

TEST_F(CudaGpuTest, MarksNeedNoProfiler) {
  std::shared_ptr<void> mark = gpu_->mark("a range");  // null without a profiler
  const auto event = gpu_->make_event();
  gpu_->record(event.get(), stream_.get());
  synchronize();
  EXPECT_TRUE(gpu_->has_passed(event.get()));
  mark.reset();
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

TEST_F(CudaGpuTest, StreamsHaveHighPriorityAndDoNotWaitForTheDefaultOne) {
  unsigned flags = 0;
  int priority = 0;
  int highest = 0;
  KOLO_CUDA_TRY(cudaStreamGetFlags(stream_.get(), &flags));
  KOLO_CUDA_TRY(cudaStreamGetPriority(stream_.get(), &priority));
  KOLO_CUDA_TRY(cudaDeviceGetStreamPriorityRange(nullptr, &highest));
  EXPECT_EQ(flags, static_cast<unsigned>(cudaStreamNonBlocking));
  EXPECT_EQ(priority, highest);
}

TEST_F(CudaGpuTest, TooMuchMemoryIsAnErrorThatSaysHowMuch) {
  constexpr std::size_t kTooMuch = std::size_t{1} << 60;
  try {
    static_cast<void>(gpu_->allocate(kTooMuch));
    ADD_FAILURE() << "no error";
  } catch (const BackendError& error) {
    const std::string text = error.what();
    EXPECT_EQ(text.find("allocate " + std::to_string(kTooMuch) + " bytes on GPU 0: cudaMalloc"), 0u)
        << text;
  }
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_NE(gpu_->allocate(1), nullptr);
}

TEST_F(CudaGpuTest, AnyThreadMayUseAndReleaseWhatAnotherMade) {
  auto memory = gpu_->allocate(4096);
  std::thread([&, stream = std::move(stream_)]() mutable {
    const auto event = gpu_->make_event();
    gpu_->fill(memory.get(), 1024, DType::Float32, test::scalar_of(DType::Float32, 1),
               stream.get());
    gpu_->record(event.get(), stream.get());
    while (!gpu_->has_passed(event.get())) {
    }
    std::vector<float> got(1024);
    test::copy_bytes(got.data(), memory.get(), 4096);
    EXPECT_EQ(got, std::vector<float>(1024, 1.0F));
    memory.reset();
    stream.reset();
  }).join();
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_EQ(stream_, nullptr);
  stream_ = gpu_->make_stream();
  memory = gpu_->allocate(4096);
  gpu_->fill(memory.get(), 1024, DType::Float32, test::scalar_of(DType::Float32, 2), stream_.get());
  synchronize();
  float last = 0;
  test::copy_bytes(&last, memory.get() + 1023 * sizeof(float), 4);
  EXPECT_EQ(last, 2.0F);
}

/// In global mode, a forbidden call in any thread makes the capture fail, unless that thread has
/// switched to relaxed mode.
TEST_F(CudaGpuTest, CaptureIsSeenAndNotBrokenByOtherThreads) {
  const std::shared_ptr<CUstream_st> captured = gpu_->make_stream();
  EXPECT_FALSE(gpu_->is_capturing(captured.get()));
  KOLO_CUDA_TRY(cudaStreamBeginCapture(captured.get(), cudaStreamCaptureModeGlobal));
  EXPECT_TRUE(gpu_->is_capturing(captured.get()));
  EXPECT_FALSE(gpu_->is_capturing(stream_.get()));
  std::thread([&] {
    const auto event = gpu_->make_event();
    const auto memory = gpu_->allocate(64);
    gpu_->fill(memory.get(), 16, DType::Float32, test::scalar_of(DType::Float32, 1), stream_.get());
    gpu_->record(event.get(), stream_.get());
    while (!gpu_->has_passed(event.get())) {
    }
  }).join();
  cudaGraph_t graph = nullptr;
  KOLO_CUDA_TRY(cudaStreamEndCapture(captured.get(), &graph));
  EXPECT_NE(graph, nullptr);
  KOLO_CUDA_TRY(cudaGraphDestroy(graph));
  EXPECT_FALSE(gpu_->is_capturing(captured.get()));
}

}  // namespace kolo::comm::cuda_gpu_test

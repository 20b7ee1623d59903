#include "comm/gpu/cuda_gpu.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "comm/gpu/cuda_check.hpp"
#include "comm/gpu/cuda_gpus.hpp"
#include "comm/gpu/scalar.hpp"
#include "gpu/conversion_cases.hpp"
#include "gpu/skip_without_gpu.hpp"
#include "gpu/vector_cases.hpp"
#include "kolo/error.hpp"

namespace kolo::comm::cuda_gpu_test {

class CudaGpuTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = test::why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
    gpu_ = cuda_gpus()->open(0);
    stream_ = gpu_->make_stream();
  }

  void synchronize() const { KOLO_CUDA_TRY(cudaStreamSynchronize(stream_.get())); }

  std::shared_ptr<std::byte> upload(std::span<const std::byte> bytes) const {
    auto memory = gpu_->allocate(bytes.size() + 1);
    KOLO_CUDA_TRY(cudaMemcpy(memory.get(), bytes.data(), bytes.size(), cudaMemcpyDefault));
    return memory;
  }

  /// Through the GPU's memory.
  test::HostConvert on_gpu() const {
    return [this](std::span<const DeviceRun> runs, std::span<const std::byte> from,
                  std::span<std::byte> to, DeviceConversion conversion) {
      const bool in_place = from.data() == to.data();
      const auto target = upload(to);
      const auto source = in_place ? target : upload(from);
      std::vector<DeviceRun> moved;
      for (const DeviceRun& run : runs) {
        moved.push_back({source.get() + (run.from - from.data()),
                         target.get() + (run.to - to.data()), run.count});
      }
      gpu_->convert(moved, conversion, stream_.get());
      moved.clear();
      synchronize();
      KOLO_CUDA_TRY(cudaMemcpy(to.data(), target.get(), to.size(), cudaMemcpyDefault));
    };
  }

  std::shared_ptr<Gpu> gpu_;
  std::shared_ptr<CUstream_st> stream_;
};

/// Through the GPU's memory.
class VectorsOnGpu final : public test::VectorOperations {
 public:
  VectorsOnGpu(Gpu& gpu, DeviceStream stream) : gpu_(gpu), stream_(stream) {}

  void add_up(const DeviceVectors& vectors, DeviceWeights weights, std::byte* to) override {
    const Uploaded uploaded(gpu_, vectors);
    const auto count = static_cast<std::size_t>(vectors.vectors);
    const std::size_t bytes = vectors.count * size_of(vectors.dtype);
    const std::size_t offset = offset_of(to);
    const auto result = gpu_.allocate(offset + bytes);
    const auto each = gpu_.allocate(count * sizeof(double));
    if (weights.each != nullptr) {
      copy(each.get(), weights.each, count * sizeof(double));
      weights.each = reinterpret_cast<const double*>(each.get());
    }
    gpu_.add_up(uploaded.vectors, weights, result.get() + offset, stream_);
    KOLO_CUDA_TRY(cudaStreamSynchronize(stream_));
    copy(to, result.get() + offset, bytes);
  }

  void multiply_all(const DeviceVectors& vectors, std::span<double> products) override {
    const Uploaded uploaded(gpu_, vectors);
    const std::size_t parts = dot_product_parts(vectors.vectors);
    const auto result = gpu_.allocate(products.size_bytes());
    const auto partial = gpu_.allocate(parts * products.size_bytes());
    gpu_.multiply_all(uploaded.vectors, reinterpret_cast<double*>(result.get()),
                      reinterpret_cast<double*>(partial.get()), stream_);
    KOLO_CUDA_TRY(cudaStreamSynchronize(stream_));
    copy(products.data(), result.get(), products.size_bytes());
  }

 private:
  static void copy(void* to, const void* from, std::size_t bytes) {
    KOLO_CUDA_TRY(cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
  }
  /// Bytes after a 16-byte boundary.
  static std::size_t offset_of(const std::byte* memory) {
    return reinterpret_cast<std::uintptr_t>(memory) % 16;
  }

  /// Vectors copied from host memory, with the same alignment.
  struct Uploaded {
    Uploaded(Gpu& gpu, const DeviceVectors& host) : vectors(host) {
      const auto last = static_cast<std::size_t>(host.vectors - 1);
      const std::size_t bytes = (last * host.stride + host.count) * size_of(host.dtype);
      memory = gpu.allocate(offset_of(host.first) + bytes);
      vectors.first = memory.get() + offset_of(host.first);
      copy(memory.get() + offset_of(host.first), host.first, bytes);
    }

    DeviceVectors vectors;
    std::shared_ptr<std::byte> memory;
  };

  Gpu& gpu_;
  DeviceStream stream_;
};

TEST_F(CudaGpuTest, ConvertsAsTheCpuDoes) { test::expect_converted_as_on_the_cpu(on_gpu()); }

TEST_F(CudaGpuTest, ConvertsInPlace) { test::expect_converted_in_place(on_gpu()); }

TEST_F(CudaGpuTest, ConvertsMoreRunsThanOneLaunchTakes) {
  test::expect_many_runs_converted(on_gpu());
}

TEST_F(CudaGpuTest, AddsUpVectorsInOrder) {
  VectorsOnGpu operations(*gpu_, stream_.get());
  test::expect_added_up_in_order(operations);
}

TEST_F(CudaGpuTest, MultipliesAllPairsOfVectors) {
  VectorsOnGpu operations(*gpu_, stream_.get());
  test::expect_multiplied(operations);
}

TEST_F(CudaGpuTest, WeighsManyMatricesForAdasum) {
  constexpr int kMatrices = 100;
  std::vector<double> products;
  for (int i = 0; i < kMatrices; ++i) {
    const double ab = i % 5 - 2;
    products.insert(products.end(), {10.0 + i, ab, ab, 6.0});
  }
  const auto matrices = upload(std::as_bytes(std::span(products)));
  const auto weights = gpu_->allocate(2 * kMatrices * sizeof(double));
  gpu_->weigh_adasum(reinterpret_cast<const double*>(matrices.get()), kMatrices, 2,
                     reinterpret_cast<double*>(weights.get()), stream_.get());
  synchronize();
  std::vector<double> got(2 * kMatrices);
  KOLO_CUDA_TRY(
      cudaMemcpy(got.data(), weights.get(), got.size() * sizeof(double), cudaMemcpyDefault));
  for (std::size_t i = 0; i < kMatrices; ++i) {
    const double ab = products[4 * i + 1];
    EXPECT_DOUBLE_EQ(got[2 * i], 1 - ab / (2 * products[4 * i])) << i;
    EXPECT_DOUBLE_EQ(got[2 * i + 1], 1 - ab / 12) << i;
  }
}

TEST_F(CudaGpuTest, ConvertsMoreElementsThan32BitsCount) {
  constexpr std::size_t kCount = (std::size_t{1} << 32) + 7;
  std::size_t free = 0;
  std::size_t total = 0;
  KOLO_CUDA_TRY(cudaMemGetInfo(&free, &total));
  if (free < 3 * kCount) GTEST_SKIP() << "less than 13 GB of the GPU's memory are free";
  const auto bytes = gpu_->allocate(2 * kCount);
  constexpr std::size_t kTail = kCount - 7;  // these a 32-bit count would miss
  gpu_->fill(bytes.get(), kTail, DType::Int8, scalar_of(DType::Int8, -3), stream_.get());
  gpu_->fill(bytes.get() + kTail, 7, DType::Int8, scalar_of(DType::Int8, 5), stream_.get());
  gpu_->fill(bytes.get() + kCount, kCount, DType::Int8, scalar_of(DType::Int8, 0), stream_.get());
  const DeviceRun run{bytes.get(), bytes.get() + kCount, kCount};
  gpu_->convert({&run, 1}, {.from = DType::Int8, .to = DType::Int8, .factor = 2}, stream_.get());
  synchronize();
  std::vector<std::int8_t> got(std::size_t{1} << 26);
  for (std::size_t begin = 0; begin < kCount; begin += got.size()) {
    got.resize(std::min(got.size(), kCount - begin));
    KOLO_CUDA_TRY(cudaMemcpy(got.data(), run.to + begin, got.size(), cudaMemcpyDefault));
    const std::int8_t expected = begin < kTail ? -6 : 10;
    ASSERT_EQ(std::count(got.begin(), got.end(), expected), std::ssize(got)) << "from " << begin;
  }
}

TEST_F(CudaGpuTest, FillsWithEveryType) {
  constexpr std::size_t kCount = 10'007;
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (is_complex(dtype)) continue;  // comes as its parts
    const std::size_t size = size_of(dtype);
    const auto element = scalar_of(dtype, 77.5);
    for (const std::size_t begin : {0u, 1u, 5u}) {
      std::vector<std::byte> expected((kCount + 16) * size, std::byte{0xA5});
      const auto memory = upload(expected);
      gpu_->fill(memory.get() + begin * size, kCount, dtype, scalar_of(dtype, 77.5), stream_.get());
      gpu_->fill(memory.get(), 0, dtype, scalar_of(dtype, 1), stream_.get());
      synchronize();
      for (std::size_t j = 0; j < kCount * size; ++j) {
        expected[begin * size + j] = element[j % size];
      }
      std::vector<std::byte> got(expected.size());
      KOLO_CUDA_TRY(cudaMemcpy(got.data(), memory.get(), got.size(), cudaMemcpyDefault));
      EXPECT_EQ(got, expected) << name_of(dtype) << " from element " << begin;
    }
  }
}

TEST_F(CudaGpuTest, RefusesWhatNoKernelDoesBeforeAnyLaunch) {
  const auto memory = gpu_->allocate(64);
  const DeviceRun run{memory.get(), memory.get(), 3};
  EXPECT_THROW(
      gpu_->convert({&run, 1}, {.from = DType::Float32, .to = DType::Int32}, stream_.get()),
      InvalidArgument);
  EXPECT_THROW(
      gpu_->fill(memory.get() + 1, 3, DType::Float32, scalar_of(DType::Float32, 0), stream_.get()),
      InvalidArgument);
  const DeviceVectors integers{memory.get(), DType::Int32, 3, 3, 1};
  const DeviceVectors crooked{memory.get() + 1, DType::Float32, 3, 3, 1};
  for (const DeviceVectors& vectors : {integers, crooked}) {
    EXPECT_THROW(gpu_->add_up(vectors, {}, memory.get() + 16, stream_.get()), InvalidArgument);
  }
  synchronize();
}

TEST_F(CudaGpuTest, EventsPassInTheOrderOfTheStream) {
  constexpr std::size_t kBytes = std::size_t{1} << 28;
  const auto event = gpu_->make_event();
  EXPECT_TRUE(gpu_->has_passed(event.get()));  // never recorded
  const auto memory = gpu_->allocate(kBytes);
  const auto other = gpu_->make_stream();
  for (int i = 0; i < 20; ++i)
    gpu_->fill(memory.get(), kBytes, DType::UInt8, scalar_of(DType::UInt8, i), stream_.get());
  gpu_->record(event.get(), stream_.get());
  EXPECT_FALSE(gpu_->has_passed(event.get()));
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);  // "not ready" leaves no error behind
  gpu_->wait(other.get(), event.get());
  gpu_->fill(memory.get(), kBytes, DType::UInt8, scalar_of(DType::UInt8, 99), other.get());
  KOLO_CUDA_TRY(cudaStreamSynchronize(other.get()));
  EXPECT_TRUE(gpu_->has_passed(event.get()));
  std::uint8_t value = 0;
  KOLO_CUDA_TRY(cudaMemcpy(&value, memory.get() + kBytes - 1, 1, cudaMemcpyDefault));
  EXPECT_EQ(value, 99);
}

TEST_F(CudaGpuTest, TimersTellHowLongWhatIsBetweenThemTakes) {
  constexpr std::size_t kBytes = std::size_t{1} << 28;
  const auto memory = gpu_->allocate(kBytes);
  const auto first = gpu_->make_timer();
  const auto last = gpu_->make_timer();
  gpu_->record(first.get(), stream_.get());
  gpu_->fill(memory.get(), kBytes, DType::UInt8, scalar_of(DType::UInt8, 1), stream_.get());
  gpu_->record(last.get(), stream_.get());
  synchronize();
  const double seconds = gpu_->seconds_between(first.get(), last.get());
  EXPECT_GT(seconds, 1e-6);  // no GPU writes 256 MiB in a microsecond, or takes a second for it
  EXPECT_LT(seconds, 1.0);
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

TEST_F(CudaGpuTest, StreamsGoBeforeOthersAndDoNotWaitForTheDefaultOne) {
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

TEST_F(CudaGpuTest, AnyThreadMayUseAndGiveUpWhatAnotherMade) {
  auto memory = gpu_->allocate(4096);
  std::thread([&, stream = std::move(stream_)]() mutable {
    const auto event = gpu_->make_event();
    gpu_->fill(memory.get(), 1024, DType::Float32, scalar_of(DType::Float32, 1), stream.get());
    gpu_->record(event.get(), stream.get());
    while (!gpu_->has_passed(event.get())) {
    }
    std::vector<float> got(1024);
    KOLO_CUDA_TRY(cudaMemcpy(got.data(), memory.get(), 4096, cudaMemcpyDefault));
    EXPECT_EQ(got, std::vector<float>(1024, 1.0F));
    memory.reset();
    stream.reset();
  }).join();
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_EQ(stream_, nullptr);
  stream_ = gpu_->make_stream();
  memory = gpu_->allocate(4096);
  gpu_->fill(memory.get(), 1024, DType::Float32, scalar_of(DType::Float32, 2), stream_.get());
  synchronize();
  float last = 0;
  KOLO_CUDA_TRY(cudaMemcpy(&last, memory.get() + 1023 * sizeof(float), 4, cudaMemcpyDefault));
  EXPECT_EQ(last, 2.0F);
}

/// In global mode a capture ends in an error when any thread does what it forbids, unless that
/// thread has said that it means nothing by it.
TEST_F(CudaGpuTest, CaptureIsSeenAndNotBrokenByOtherThreads) {
  const std::shared_ptr<CUstream_st> captured = gpu_->make_stream();
  EXPECT_FALSE(gpu_->is_capturing(captured.get()));
  KOLO_CUDA_TRY(cudaStreamBeginCapture(captured.get(), cudaStreamCaptureModeGlobal));
  EXPECT_TRUE(gpu_->is_capturing(captured.get()));
  EXPECT_FALSE(gpu_->is_capturing(stream_.get()));
  std::thread([&] {
    const auto event = gpu_->make_event();
    const auto memory = gpu_->allocate(64);
    gpu_->fill(memory.get(), 16, DType::Float32, scalar_of(DType::Float32, 1), stream_.get());
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

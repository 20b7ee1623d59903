// Results of kernels on a GPU.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "comm/gpu/gpu.hpp"
#include "gpu/cuda_gpu_fixture.hpp"
#include "gpu/device_copy.hpp"
#include "gpu/vector_cases.hpp"
#include "kolo/error.hpp"
#include "support/gpu/scalar.hpp"

namespace kolo::comm::cuda_gpu_test {

/// Copies vectors to the GPU, runs the kernels there, and copies results back.
class VectorsOnGpu final : public test::VectorOperations {
 public:
  VectorsOnGpu(Gpu& gpu, DeviceStream stream) : gpu_(gpu), stream_(stream) {}

  void add_up(const DeviceVectors& vectors, DeviceFactors factors, std::byte* to) override {
    const Uploaded uploaded(gpu_, vectors);
    const std::size_t bytes = vectors.count * size_of(vectors.dtype);
    const std::size_t offset = offset_of(to);
    const auto result = gpu_.allocate(offset + bytes);
    gpu_.add_up(uploaded.vectors, factors, result.get() + offset, stream_);
    KOLO_CUDA_TRY(cudaStreamSynchronize(stream_));
    copy(to, result.get() + offset, bytes);
  }

 private:
  static void copy(void* to, const void* from, std::size_t bytes) {
    test::copy_bytes(to, from, bytes);
  }
  /// The offset from a 16-byte boundary.
  static std::size_t offset_of(const std::byte* memory) {
    return reinterpret_cast<std::uintptr_t>(memory) % 16;
  }

  /// Copies of vectors in host memory, with the same alignment.
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

TEST_F(CudaGpuTest, ConvertsMoreElementsThan32BitsCount) {
  constexpr std::size_t kCount = (std::size_t{1} << 32) + 7;
  std::size_t free = 0;
  std::size_t total = 0;
  KOLO_CUDA_TRY(cudaMemGetInfo(&free, &total));
  if (free < 3 * kCount) GTEST_SKIP() << "less than 13 GB of the GPU's memory are free";
  const auto bytes = gpu_->allocate(2 * kCount);
  constexpr std::size_t kTail = kCount - 7;  // the rest is missed by a 32-bit count
  gpu_->fill(bytes.get(), kTail, DType::Int8, test::scalar_of(DType::Int8, -3), stream_.get());
  gpu_->fill(bytes.get() + kTail, 7, DType::Int8, test::scalar_of(DType::Int8, 5), stream_.get());
  gpu_->fill(bytes.get() + kCount, kCount, DType::Int8, test::scalar_of(DType::Int8, 0),
             stream_.get());
  const DeviceRun run{bytes.get(), bytes.get() + kCount, kCount};
  gpu_->convert({&run, 1}, {.from = DType::Int8, .to = DType::Int8, .factor = 2}, stream_.get());
  synchronize();
  std::vector<std::int8_t> got(std::size_t{1} << 26);
  for (std::size_t begin = 0; begin < kCount; begin += got.size()) {
    got.resize(std::min(got.size(), kCount - begin));
    test::copy_bytes(got.data(), run.to + begin, got.size());
    const std::int8_t expected = begin < kTail ? -6 : 10;
    ASSERT_EQ(std::count(got.begin(), got.end(), expected), std::ssize(got)) << "from " << begin;
  }
}

TEST_F(CudaGpuTest, FillsWithEveryType) {
  constexpr std::size_t kCount = 10'007;
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (is_complex(dtype)) continue;  // passed as real and imaginary parts
    const std::size_t size = size_of(dtype);
    const auto element = test::scalar_of(dtype, 77.5);
    for (const std::size_t begin : {0u, 1u, 5u}) {
      std::vector<std::byte> expected((kCount + 16) * size, std::byte{0xA5});
      const auto memory = upload(expected);
      gpu_->fill(memory.get() + begin * size, kCount, dtype, test::scalar_of(dtype, 77.5),
                 stream_.get());
      gpu_->fill(memory.get(), 0, dtype, test::scalar_of(dtype, 1), stream_.get());
      synchronize();
      for (std::size_t j = 0; j < kCount * size; ++j) {
        expected[begin * size + j] = element[j % size];
      }
      std::vector<std::byte> got(expected.size());
      test::copy_bytes(got.data(), memory.get(), got.size());
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
  EXPECT_THROW(gpu_->fill(memory.get() + 1, 3, DType::Float32, test::scalar_of(DType::Float32, 0),
                          stream_.get()),
               InvalidArgument);
  const DeviceVectors integers{memory.get(), DType::Int32, 3, 3, 1};
  const DeviceVectors misaligned{memory.get() + 1, DType::Float32, 3, 3, 1};
  for (const DeviceVectors& vectors : {integers, misaligned}) {
    EXPECT_THROW(gpu_->add_up(vectors, {}, memory.get() + 16, stream_.get()), InvalidArgument);
  }
  synchronize();
}

}  // namespace kolo::comm::cuda_gpu_test

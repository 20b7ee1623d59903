// The kernels for codecs on a GPU, compared with the codecs on the CPU.
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "comm/gpu/cuda.hpp"
#include "comm/gpu/cuda_gpus.hpp"
#include "gpu/coding_cases.hpp"
#include "gpu/device_copy.hpp"
#include "gpu/skip_without_gpu.hpp"

namespace kolo::comm::cuda_codecs_test {

/// Copies runs to the GPU, runs the kernels there, and copies results back.
class CodingOnGpu final : public test::CodingOperations {
 public:
  CodingOnGpu() : gpu_(cuda_gpus()->open(0)), stream_(gpu_->make_stream()) {}

  void encode(const DeviceCodec& codec, std::span<const CodedRun> runs, DType from) override {
    std::vector<Uploaded> memory;
    std::vector<CodedRun> moved;
    for (const CodedRun& run : runs) {
      CodedRun& there = moved.emplace_back(run);
      there.from = upload(memory, run.from, run.count * size_of(from), nullptr);
      there.to = upload(memory, run.to, codec.run_bytes(run.count), run.to);
      there.residual = upload(memory, run.residual, run.count);
    }
    gpu_->encode(codec, moved, from, stream_.get());
    download(memory);
  }

  void decode(const DeviceCodec& codec, std::span<const CodedRun> runs, DType to,
              double factor) override {
    std::vector<Uploaded> memory;
    std::vector<CodedRun> moved;
    for (const CodedRun& run : runs) {
      CodedRun& there = moved.emplace_back(run);
      there.from = upload(memory, run.from, codec.run_bytes(run.count), nullptr);
      there.to = upload(memory, run.to, run.count * size_of(to), run.to);
    }
    gpu_->decode(codec, moved, to, factor, stream_.get());
    download(memory);
  }

  void add_coded(const base::CodecFormat& format, const CodedInputs& inputs, float* sum) override {
    std::vector<Uploaded> memory;
    CodedInputs moved = inputs;
    const auto others = static_cast<std::size_t>(inputs.ranks - 1);
    moved.payloads = upload(memory, inputs.payloads,
                            others * DeviceCodec{format}.run_bytes(inputs.count), nullptr);
    moved.elements = upload(memory, inputs.elements, inputs.count * size_of(inputs.dtype), nullptr);
    moved.residual = upload(memory, inputs.residual, inputs.count);
    float* const there = upload(memory, sum, inputs.count);
    gpu_->add_coded(format, moved, there, stream_.get());
    download(memory);
  }

 private:
  struct Uploaded {
    std::shared_ptr<std::byte> there;
    std::byte* back;  // null if it does not change
    std::size_t bytes;
  };

  std::byte* upload(std::vector<Uploaded>& memory, const std::byte* from, std::size_t bytes,
                    std::byte* back) {
    memory.push_back({gpu_->allocate(bytes + 1), back, bytes});
    test::copy_bytes(memory.back().there.get(), from, bytes);
    return memory.back().there.get();
  }
  float* upload(std::vector<Uploaded>& memory, float* numbers, std::size_t count) {
    if (numbers == nullptr) return nullptr;
    auto* const bytes = reinterpret_cast<std::byte*>(numbers);
    return reinterpret_cast<float*>(upload(memory, bytes, count * sizeof(float), bytes));
  }
  void download(const std::vector<Uploaded>& memory) {
    KOLO_CUDA_TRY(cudaStreamSynchronize(stream_.get()));
    for (const auto& [there, back, bytes] : memory) {
      if (back == nullptr) continue;
      test::copy_bytes(back, there.get(), bytes);
    }
  }

  std::shared_ptr<Gpu> gpu_;
  std::shared_ptr<CUstream_st> stream_;
};

class CudaCodecsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = test::why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
    operations_ = std::make_unique<CodingOnGpu>();
  }
  std::unique_ptr<CodingOnGpu> operations_;
};

TEST_F(CudaCodecsTest, EncodesAsTheCpuDoes) {
  test::coding::expect_encoded_as_on_the_cpu(*operations_);
}

TEST_F(CudaCodecsTest, DecodesAsTheCpuDoes) {
  test::coding::expect_decoded_as_on_the_cpu(*operations_);
}

TEST_F(CudaCodecsTest, AddsUpPayloadsAsTheCpuDoes) {
  test::coding::expect_payloads_added_as_on_the_cpu(*operations_);
}

TEST_F(CudaCodecsTest, EncodesMoreRunsThanOneLaunchTakes) {
  test::coding::expect_many_runs_encoded(*operations_);
}

}  // namespace kolo::comm::cuda_codecs_test

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "contract/reduce_case.hpp"
#include "kolo/collectives.hpp"
#include "kolo/runtime.hpp"
#include "runtime/values.hpp"
#include "support/codecs.hpp"

/// Reductions through codecs on a GPU, compared with the same ones on the CPU.
namespace kolo::test {

inline float* floats_of(const Tensor& tensor) { return static_cast<float*>(tensor.view().data); }

/// One rank's input, output and residual.
struct CodedMemory {
  Tensor input;
  Tensor output;
  Tensor residual;
};

inline void expect_same_elements(const Tensor& got, const Tensor& expected,
                                 const std::string& text) {
  got.expect([&](std::size_t i) { return expected.at(i); }, text);
}

/// Runs several steps, so that each uses the residuals of the one before.
inline void expect_bits_of_the_cpu(Runtime& runtime, DType dtype, std::int64_t count, bool scatters,
                                   AllreduceOptions options) {
  const std::int64_t rows =
      scatters ? scattered_rows(count, runtime.size(), runtime.rank()) : count;
  const bool has_residual = runtime.size() > 1 && count % 2 == 1;
  const bool is_in_place = !scatters && !has_residual;
  CodedMemory gpu{Tensor(dtype, {count}), Tensor(dtype, {rows}), Tensor(count)};
  CodedMemory cpu{on_cpu(dtype, {count}), on_cpu(dtype, {rows}), on_cpu(DType::Float32, {count})};
  const std::string text = std::string(options.compression.name()) + " of " +
                           std::to_string(count) + " " + std::string(name_of(dtype)) +
                           (scatters ? ", scattered" : "");
  for (CodedMemory* const memory : {&gpu, &cpu}) {
    memory->residual.fill([](std::size_t i) { return 0.125 * static_cast<double>(i % 5); });
  }
  for (int step = 0; step < 3; ++step) {
    for (CodedMemory* const memory : {&gpu, &cpu}) {
      memory->input.fill([&](std::size_t i) {
        const std::size_t moved = i + static_cast<std::size_t>(step) * 7;
        return reduce_value({.dtype = dtype}, runtime.rank(), moved) / 3;
      });
      options.residual = has_residual ? floats_of(memory->residual) : nullptr;
      options.name = text + (memory == &gpu ? ", GPU" : ", CPU");
      const Tensor& output = is_in_place ? memory->input : memory->output;
      if (scatters) {
        reduce_scatter(memory->input.view(), output.view(), options);
      } else {
        allreduce(memory->input.view(), output.view(), options);
      }
    }
    if (is_in_place) {
      expect_same_elements(gpu.input, cpu.input, text);
    } else {
      expect_same_elements(gpu.output, cpu.output, text);
    }
    expect_same_elements(gpu.residual, cpu.residual, text + ", residual");
  }
}

/// Every codec, with and without residuals, in place or not, in every floating type.
inline void expect_coded_bits_of_the_cpu(Runtime& runtime) {
  std::vector<Compression> codecs = codecs_with_gpu_kernels();
  codecs.push_back(Compression::top_k(0.5));  // so many that sums hold all elements
  for (const Compression& compression : codecs) {
    const bool has_large_blocks = compression.name().find(':') != std::string_view::npos;
    for (const std::int64_t count : {0, 1, 5, 257, has_large_blocks ? 33'001 : 3000}) {
      for (const bool scatters : {false, true}) {
        const DType dtype = count == 257 ? (scatters ? DType::BFloat16 : DType::Float16)
                            : count == 5 ? DType::Float64
                                         : DType::Float32;
        expect_bits_of_the_cpu(runtime, dtype, count, scatters,
                               {.op = count == 1 ? ReduceOp::Average : ReduceOp::Sum,
                                .postscale = count == 5 ? 0.3 : 1.0,
                                .compression = compression});
      }
    }
  }
}

}  // namespace kolo::test

// Speed of the kernels on one core, compared with memcpy: bytes of one input per second.
// Usage: kernels_bench [--benchmark_filter=REGEX]

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "base/convert.hpp"
#include "ops/kernels/kernels.hpp"

namespace kolo {
namespace {

// In the first-level cache, in the second, and in none.
constexpr std::int64_t kSizes[] = {16 << 10, 256 << 10, 64 << 20};

void count_bytes(benchmark::State& state) {
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

void measure_memcpy(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  const std::vector<std::byte> from(bytes);
  std::vector<std::byte> to(bytes);
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), bytes);
    benchmark::ClobberMemory();
  }
  count_bytes(state);
}

void measure_sum(benchmark::State& state, DType dtype, std::size_t inputs) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  const std::vector<std::vector<std::byte>> buffers(inputs, std::vector<std::byte>(bytes));
  std::vector<std::byte> result(bytes);
  std::vector<const std::byte*> pointers;
  for (const auto& buffer : buffers) pointers.push_back(buffer.data());
  const std::array<std::byte*, 1> outputs{result.data()};
  for (auto _ : state) {
    ops::combine(dtype, {ReduceOp::Sum, 1.0, 0.5}, pointers, outputs, bytes / size_of(dtype));
  }
  count_bytes(state);
}

void measure_convert(benchmark::State& state, DType from, DType to) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  const std::size_t count = bytes / size_of(from);
  const std::vector<std::byte> in(bytes);
  std::vector<std::byte> out(count * size_of(to));
  for (auto _ : state) base::convert(from, in.data(), to, out.data(), count);
  count_bytes(state);
}

void add(const std::string& name, void (*measure)(benchmark::State&)) {
  for (const std::int64_t bytes : kSizes) {
    benchmark::RegisterBenchmark(name.c_str(), measure)->Arg(bytes);
  }
}

void add_all() {
  add("memcpy", measure_memcpy);
  add("sum of 2 float32", [](benchmark::State& state) { measure_sum(state, DType::Float32, 2); });
  add("sum of 4 float32", [](benchmark::State& state) { measure_sum(state, DType::Float32, 4); });
  add("sum of 2 float16", [](benchmark::State& state) { measure_sum(state, DType::Float16, 2); });
  add("sum of 2 bfloat16", [](benchmark::State& state) { measure_sum(state, DType::BFloat16, 2); });
  add("float32 to float16",
      [](benchmark::State& state) { measure_convert(state, DType::Float32, DType::Float16); });
  add("float32 to bfloat16",
      [](benchmark::State& state) { measure_convert(state, DType::Float32, DType::BFloat16); });
  add("float16 to float32",
      [](benchmark::State& state) { measure_convert(state, DType::Float16, DType::Float32); });
}

}  // namespace
}  // namespace kolo

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  kolo::add_all();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

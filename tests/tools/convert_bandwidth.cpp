// Measures how fast a GPU converts ResNet-50's 161 gradients into one buffer, or back, compared
// with a copy of as many bytes in its memory:
//   convert_bandwidth [<rounds>]
// All take turns; times are of the GPU's own events. Prints medians and what share of the copy's
// bandwidth, of bytes read and written, the conversion has. Exit code 77 where there is no GPU.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include <cuda_runtime_api.h>

#include "bench/model_gradients.hpp"
#include "comm/gpu/cuda.hpp"
#include "comm/gpu/cuda_gpus.hpp"
#include "kolo/error.hpp"
#include "tests/support/gpu/scalar.hpp"

namespace {

using namespace kolo;
using namespace kolo::comm;

constexpr int kRepeats = 10;                   // operations between two events
constexpr std::size_t kTensorAlignment = 512;  // as LibTorch allocates
constexpr std::size_t kPlaceAlignment = 64;    // within a buffer

struct EventDeleter {
  void operator()(cudaEvent_t event) const { KOLO_CUDA_TRY_NOTHROW(cudaEventDestroy(event)); }
};
using Event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, EventDeleter>;

Event make_timer() {
  cudaEvent_t event = nullptr;
  KOLO_CUDA_TRY(cudaEventCreate(&event));
  return Event(event);
}

std::size_t round_up(std::size_t value, std::size_t step) {
  return (value + step - 1) / step * step;
}

/// All gradients of type `from`, as tensors, and their places of type `to` in one buffer, or the
/// reverse.
std::vector<DeviceRun> runs_of(const std::vector<std::size_t>& counts, std::byte* from,
                               std::size_t from_alignment, std::byte* to, std::size_t to_alignment,
                               DeviceConversion conversion) {
  std::vector<DeviceRun> runs;
  for (const std::size_t count : counts) {
    runs.push_back({from, to, count});
    from += round_up(count * size_of(conversion.from), from_alignment);
    to += round_up(count * size_of(conversion.to), to_alignment);
  }
  return runs;
}

struct Case {
  std::string name;
  std::size_t bytes;  // read plus written
  std::function<void()> run;
  std::vector<double> seconds{};

  double median() {
    std::ranges::sort(seconds);
    return seconds[seconds.size() / 2];
  }
};

double time_of(const std::function<void()>& run, cudaStream_t stream) {
  const Event begin = make_timer();
  const Event end = make_timer();
  KOLO_CUDA_TRY(cudaEventRecord(begin.get(), stream));
  for (int i = 0; i < kRepeats; ++i) run();
  KOLO_CUDA_TRY(cudaEventRecord(end.get(), stream));
  KOLO_CUDA_TRY(cudaEventSynchronize(end.get()));
  float milliseconds = 0;
  KOLO_CUDA_TRY(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()));
  return static_cast<double>(milliseconds) / 1e3 / kRepeats;
}

/// A conversion of the gradients, then the copy it is compared with.
void add_pair(std::vector<Case>& cases, Gpu& gpu, cudaStream_t stream,
              const std::vector<std::size_t>& counts, std::byte* from, std::byte* to,
              DeviceConversion conversion, bool gather) {
  std::size_t elements = 0;
  for (const std::size_t count : counts) elements += count;
  const std::size_t bytes = elements * (size_of(conversion.from) + size_of(conversion.to));
  const std::vector<DeviceRun> runs =
      runs_of(counts, from, gather ? kTensorAlignment : kPlaceAlignment, to,
              gather ? kPlaceAlignment : kTensorAlignment, conversion);
  cases.push_back(
      {std::string(name_of(conversion.from)) + " -> " + std::string(name_of(conversion.to)), bytes,
       [&gpu, stream, runs, conversion] { gpu.convert(runs, conversion, stream); }});
  cases.push_back({"copy", bytes, [=] {
                     KOLO_CUDA_TRY(
                         cudaMemcpyAsync(to, from, bytes / 2, cudaMemcpyDeviceToDevice, stream));
                   }});
}

void measure(Gpu& gpu, int rounds) {
  const std::vector<std::size_t> counts = bench::gradient_counts("resnet50");
  std::size_t room = 0;
  for (const std::size_t count : counts) room += round_up(count * sizeof(float), kTensorAlignment);
  const auto stream = gpu.make_stream();
  const auto from = gpu.allocate(room);
  const auto to = gpu.allocate(room);
  gpu.fill(from.get(), room / sizeof(float), DType::Float32, test::scalar_of(DType::Float32, 1.1),
           stream.get());

  std::vector<Case> cases;
  const auto add = [&](DType source, DType target, double factor, bool gather) {
    add_pair(cases, gpu, stream.get(), counts, from.get(), to.get(),
             {.from = source, .to = target, .factor = factor}, gather);
  };
  add(DType::Float32, DType::Float32, 1.0, true);
  add(DType::Float32, DType::Float32, 0.5, true);
  add(DType::Float32, DType::Float16, 1.0, true);
  add(DType::Float16, DType::Float32, 0.5, false);

  for (int round = -3; round < rounds; ++round) {  // rounds below 0 warm up
    for (Case& bench_case : cases) {
      const double seconds = time_of(bench_case.run, stream.get());
      if (round >= 0) bench_case.seconds.push_back(seconds);
    }
  }
  std::printf("%zu gradients, %d rounds of %d\n", counts.size(), rounds, kRepeats);
  for (std::size_t i = 0; i < cases.size(); i += 2) {
    Case& conversion = cases[i];
    Case& copy = cases[i + 1];
    const auto bandwidth = [](Case& bench_case) {
      return static_cast<double>(bench_case.bytes) / bench_case.median() / 1e9;
    };
    std::printf("%-20s %8.1f us %8.1f GB/s   copy %8.1f us %8.1f GB/s   ratio %.3f\n",
                conversion.name.c_str(), conversion.median() * 1e6, bandwidth(conversion),
                copy.median() * 1e6, bandwidth(copy), bandwidth(conversion) / bandwidth(copy));
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const int rounds = argc > 1 ? std::atoi(argv[1]) : 51;
    if (rounds < 1) throw InvalidArgument("usage: convert_bandwidth [<rounds>]");
    try {
      cuda_gpus()->count();
    } catch (const BackendError& error) {
      std::fprintf(stderr, "skipped: %s\n", error.what());
      return 77;
    }
    measure(*cuda_gpus()->open(0), rounds);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "convert_bandwidth: %s\n", error.what());
    return 1;
  }
}

#pragma once

#include <functional>

#include "bench/ranks/gpu.hpp"
#include "bench/ranks/timer.hpp"
#include "bench/workload/growing_buffer.hpp"

namespace bench {

/// For tensors on a GPU, all of them in `memory`: the GPU's clock runs around a block of calls, the
/// host's beside it, and nobody waits for the GPU in between. Calls find zeros there, and what the
/// calls before have made of them, which are zeros.
class DeviceTimer final : public Timer {
 public:
  /// `meet` returns when all ranks have called it. All arguments outlive the timer.
  DeviceTimer(Gpu& gpu, const GrowingBuffer& memory, int rank, int ranks,
              std::function<void()> meet);

  Block run(const Workload& workload, const Case& bench_case, int iterations) override;
  std::uint64_t count_wrong(const Workload& workload, const Case& bench_case) override;
  GpuDescription gpu() const override { return gpu_.description(); }

 private:
  Gpu& gpu_;
  const GrowingBuffer& memory_;
  int rank_;
  int ranks_;
  std::function<void()> meet_;
};

}  // namespace bench

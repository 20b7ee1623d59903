#pragma once

#include <functional>

#include "bench/ranks/gpu.hpp"
#include "bench/ranks/timer.hpp"
#include "bench/workload/growing_buffer.hpp"

namespace bench {

/// Times tensors on a GPU, all of them in `memory`. GPU events and the host's clock enclose a block
/// of calls, without waiting for the GPU in between. The memory is zeroed before a block, and calls
/// on zeros leave it so.
class DeviceTimer final : public Timer {
 public:
  /// `barrier` returns once all ranks have called it. All arguments must outlive the timer.
  DeviceTimer(Gpu& gpu, const GrowingBuffer& memory, int rank, int ranks,
              std::function<void()> barrier);

  Block run(const Workload& workload, const Case& bench_case, int iterations) override;
  std::uint64_t count_wrong(const Workload& workload, const Case& bench_case) override;
  GpuDescription gpu() const override { return gpu_.description(); }

 private:
  Gpu& gpu_;
  const GrowingBuffer& memory_;
  int rank_;
  int ranks_;
  std::function<void()> barrier_;
};

}  // namespace bench

#pragma once

#include <functional>

#include "bench/arena.hpp"
#include "bench/gpu.hpp"
#include "bench/referee.hpp"

namespace bench {

/// For tensors on a GPU, all of them in `memory`: the GPU's clock runs around a block of calls, the
/// host's beside it, and nobody waits for the GPU in between. Calls find zeros there, and what the
/// calls before have made of them, which are zeros.
class DeviceReferee final : public Referee {
 public:
  /// `meet` returns when all ranks have called it. All arguments outlive the referee.
  DeviceReferee(Gpu& gpu, const Arena& memory, int rank, int ranks, std::function<void()> meet);

  Block run(const Workload& workload, const Contestant& contestant, int iterations) override;
  std::uint64_t count_wrong(const Workload& workload, const Contestant& contestant) override;
  GpuDescription gpu() const override { return gpu_.description(); }

 private:
  Gpu& gpu_;
  const Arena& memory_;
  int rank_;
  int ranks_;
  std::function<void()> meet_;
};

}  // namespace bench

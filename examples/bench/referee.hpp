#pragma once

#include <cstdint>

#include "bench/contestant.hpp"
#include "bench/gpu_description.hpp"
#include "bench/job.hpp"

namespace bench {

/// Times what contestants do on one rank, where their tensors lie, and checks it. All ranks make
/// the same calls.
class Referee {
 public:
  virtual ~Referee() = default;

  /// A block as this rank alone sees it.
  virtual Block run(const Workload& workload, const Contestant& contestant, int iterations) = 0;

  /// Elements that a call on known inputs gets wrong on this rank.
  virtual std::uint64_t count_wrong(const Workload& workload, const Contestant& contestant) = 0;

  /// Of this rank, where tensors lie on one.
  virtual GpuDescription gpu() const { return {}; }
};

}  // namespace bench

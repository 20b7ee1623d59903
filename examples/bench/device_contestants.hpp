#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/arena.hpp"
#include "bench/contestant.hpp"
#include "bench/gpu.hpp"
#include "bench/options.hpp"
#include "bench/public_calls.hpp"
#include "kolo/runtime.hpp"

namespace bench {

/// Kolo's whole path on a GPU and, where the options ask for a baseline, raw collectives on the
/// same memory and the same stream.
class DeviceContestants {
 public:
  /// Connects GPUs. Collective. `runtime` is the calling thread's current one; all arguments
  /// outlive the contestants. Throws kolo::InvalidArgument, on all ranks, where two of them use the
  /// same GPU and KOLO_SHARE_GPU is not on.
  DeviceContestants(const Options& options, const kolo::Runtime& runtime, Gpu& gpu);
  DeviceContestants(const DeviceContestants&) = delete;  // contestants point into it
  DeviceContestants& operator=(const DeviceContestants&) = delete;

  /// Those that can do `workload`; they are good until the next call.
  std::vector<Contestant> make(const Workload& workload);

  /// What all tensors lie in.
  const Arena& memory() const { return memory_; }

 private:
  void connect_kolo();
  void add_kolo(const Workload& workload, bool in_place, std::vector<Contestant>& contestants);
  void add_buckets(const Workload& workload, std::vector<Contestant>& contestants);
  void add_raw(const Workload& workload, bool in_place, std::vector<Contestant>& contestants);
  Layout layout_of(const Workload& workload, bool in_place) const;
  Calls calls_of(const Workload& workload, const Label& label) const;
  bool is_wanted(const std::string& algorithm) const;

  const Options& options_;
  const kolo::Runtime& runtime_;
  Gpu& gpu_;
  Arena memory_;
  std::unique_ptr<RawCollectives> raw_;
};

}  // namespace bench

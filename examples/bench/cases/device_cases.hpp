#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/cases/case.hpp"
#include "bench/cases/public_calls.hpp"
#include "bench/options.hpp"
#include "bench/ranks/gpu.hpp"
#include "bench/workload/growing_buffer.hpp"
#include "kolo/runtime.hpp"

namespace bench {

/// Kolo's whole path on a GPU and, where the options ask for a baseline, raw collectives on the
/// same memory and the same stream.
class DeviceCases {
 public:
  /// Connects GPUs. Collective. `runtime` is the calling thread's current one; all arguments
  /// outlive the cases. Throws kolo::InvalidArgument, on all ranks, where two of them use the
  /// same GPU and KOLO_SHARE_GPU is not on.
  DeviceCases(const Options& options, const kolo::Runtime& runtime, Gpu& gpu);
  DeviceCases(const DeviceCases&) = delete;  // cases point into it
  DeviceCases& operator=(const DeviceCases&) = delete;

  /// Those that can do `workload`; they are good until the next call.
  std::vector<Case> make(const Workload& workload);

  /// What all tensors lie in.
  const GrowingBuffer& memory() const { return memory_; }

 private:
  void connect_kolo();
  void add_kolo(const Workload& workload, bool in_place, std::vector<Case>& cases);
  void add_buckets(const Workload& workload, std::vector<Case>& cases);
  void add_raw(const Workload& workload, bool in_place, std::vector<Case>& cases);
  Layout layout_of(const Workload& workload, bool in_place) const;
  Calls calls_of(const Workload& workload, const Label& label) const;
  bool is_wanted(const std::string& algorithm) const;

  const Options& options_;
  const kolo::Runtime& runtime_;
  Gpu& gpu_;
  GrowingBuffer memory_;
  std::unique_ptr<RawCollectives> raw_;
};

}  // namespace bench

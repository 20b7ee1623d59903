#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/cases/case.hpp"
#include "bench/cases/public_calls.hpp"
#include "bench/options.hpp"
#include "bench/ranks/gpu.hpp"
#include "bench/workload/growing_buffer.hpp"

namespace bench {

/// What the processes of a job on GPUs measure.
struct DeviceRole {
  bool has_kolo = true;
  /// The reference that NCCL's own calls are, by which algorithms it may take; empty: there are
  /// none.
  std::string nccl{};
};

/// NCCL in the same processes as Kolo, with whatever algorithms Kolo's communicators have.
inline constexpr const char* kNcclBesideKolo = "NCCL";
/// NCCL in processes of its own, with rings, and with whatever it chooses.
inline constexpr const char* kNcclRing = "ring";
inline constexpr const char* kNcclAuto = "auto";

/// Kolo's whole path on a GPU, and raw collectives, on the same memory and the same stream.
class DeviceCases {
 public:
  /// Connects GPUs. Collective. Kolo's Runtime, if the role has it, is the calling thread's current
  /// one; options and GPU outlive the cases. Throws kolo::InvalidArgument, on all ranks, where two
  /// of them use the same GPU and KOLO_SHARE_GPU is not on.
  DeviceCases(const Options& options, DeviceRole role, int rank, int ranks, Gpu& gpu);
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
  DeviceRole role_;
  int rank_;
  int ranks_;
  Gpu& gpu_;
  GrowingBuffer memory_;
  std::unique_ptr<RawCollectives> raw_;
};

}  // namespace bench
